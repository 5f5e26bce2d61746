"""The items of a conversation: the client's own, and those of earlier responses.

Items of tools that are not offered here are accepted too, so that a coding agent can continue a session that it started
elsewhere: calls with a result are shown to the model, others are left out with a warning (`SkippedItem`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.http.api.fields import CLIENT_ONLY, Arguments, NonEmptyList, StrictModel, TextOrParts
from penstock.http.api.responses import ignored_fields
from penstock.http.parse.unions import ByField, ByJsonType

_ID = Field(None, description="As it came. Not used: items go by their place.")
_STATUS = Field(None, description="As it came. Not used.")
_NOT_SHOWN = "As it came. Not shown to the model."
Status = Literal["in_progress", "completed", "incomplete"]

# --- messages


class InputText(StrictModel):
    only = ("input_text", "parts of text")

    type: Literal["input_text"]
    text: str


class OutputText(StrictModel):
    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]] | None = Field(None, fail_fast=True, description=_NOT_SHOWN)
    logprobs: list[dict[str, Any]] | None = Field(None, fail_fast=True, description=_NOT_SHOWN)
    parsed: Any = CLIENT_ONLY


class RefusalPart(StrictModel):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


ItemPart = Annotated[InputText | OutputText | RefusalPart, ByField("type")]


class MessageItem(StrictModel):
    """The only kind of item that may leave out its type."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrParts[ItemPart] = Field(description="The text, whole or in parts; parts are joined by line breaks.")
    id: str | None = _ID
    status: Status | None = _STATUS
    phase: Literal["commentary", "final_answer"] | None = Field(None, description=_NOT_SHOWN)


# --- reasoning


class SummaryText(StrictModel):
    type: Literal["summary_text"]
    text: str


class ReasoningText(StrictModel):
    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(StrictModel):
    """What the model thought in an earlier turn. Given to the chat template, which may show it or not."""

    type: Literal["reasoning"]
    summary: list[SummaryText] | None = Field(
        None, fail_fast=True, description="Not shown to the model: `content` says it in full."
    )
    content: list[ReasoningText] | None = Field(None, fail_fast=True)
    id: str | None = _ID
    status: Status | None = _STATUS
    encrypted_content: str | None = Field(
        None, description="Read where there is no `content`. Another server's is left out, with a warning."
    )


# --- calls and their results


class FunctionCallItem(StrictModel):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str = Field(description="A JSON object. One that a length limit cut short is shown as it is.")
    parsed_arguments: Any = CLIENT_ONLY
    id: str | None = _ID
    status: Status | None = _STATUS
    caller: Annotated[Any, ignored_fields.FUNCTION_CALL["caller"]] = None
    namespace: str | None = Field(None, description="Shown to the model in front of the name.")


class FunctionCallOutputItem(StrictModel):
    type: Literal["function_call_output"]
    call_id: str = Field(description="That of a call before it.")
    output: TextOrParts[InputText]
    id: str | None = _ID
    status: Status | None = _STATUS


class CustomToolCallItem(StrictModel):
    """Shown to the model as a call with the argument `input`."""

    type: Literal["custom_tool_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: str
    id: str | None = _ID
    status: Status | None = _STATUS
    caller: Annotated[Any, ignored_fields.FUNCTION_CALL["caller"]] = None
    namespace: str | None = Field(None, description="Shown to the model in front of the name.")


class CustomToolCallOutputItem(StrictModel):
    type: Literal["custom_tool_call_output"]
    call_id: str = Field(description="That of a call before it.")
    output: TextOrParts[InputText]
    name: str | None = Field(None, description="Of the tool. Known from the call.")
    id: str | None = _ID
    status: Status | None = _STATUS


class LocalShellCallItem(StrictModel):
    """Shown to the model as a call of `local_shell` with its action."""

    type: Literal["local_shell_call"]
    call_id: str = Field(min_length=1)
    action: Arguments
    id: str | None = _ID
    status: Status | None = _STATUS


class LocalShellCallOutputItem(StrictModel):
    type: Literal["local_shell_call_output"]
    id: str = Field(description="The `call_id` of a call before it.")
    output: str
    status: Status | None = _STATUS


class SkippedItem(BaseModel):
    """What a tool of OpenAI's own did. Taken with a warning, and left out of the prompt."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: Literal["web_search_call", "image_generation_call", "tool_search_call", "tool_search_output"]
    id: str | None = _ID


Item = Annotated[
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | ReasoningItem
    | CustomToolCallItem
    | CustomToolCallOutputItem
    | LocalShellCallItem
    | LocalShellCallOutputItem
    | SkippedItem,
    ByField("type", default="message"),
]
Input = Annotated[str | NonEmptyList[Item], ByJsonType("a string or a list of items")]
