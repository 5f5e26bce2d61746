"""Chat messages in OpenAI's form, and their translation for the chat template."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from penstock.flow import Message
from penstock.http.api.fields import (
    CACHE_CONTROL,
    CLIENT_ONLY,
    CacheControl,
    NonEmptyList,
    StrictModel,
    TextOrParts,
    field_error,
    join_text,
)
from penstock.http.api.generation_fields import TemplateKwargs
from penstock.http.api.ignored_fields import IgnoredField
from penstock.http.parse.json_body import MAX_MEMBERS
from penstock.http.parse.unions import ByField


class TextPart(StrictModel):
    only = ("text", 'parts of type "text"')

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = CACHE_CONTROL


Content = TextOrParts[TextPart]
_NAME = Field(None, description="Who speaks. Given to the chat template, which may show it or not.")
_CONTENT = Field(description="The text, whole or in parts; parts are joined by line breaks.")


class SystemMessage(StrictModel):
    role: Literal["system"]
    content: Content = _CONTENT
    name: str | None = _NAME


class DeveloperMessage(StrictModel):
    """The same as a system message: chat templates know only those."""

    role: Literal["developer"]
    content: Content = _CONTENT
    name: str | None = _NAME


class UserMessage(StrictModel):
    role: Literal["user"]
    content: Content = _CONTENT
    name: str | None = _NAME


class PastFunction(StrictModel):
    name: str = Field(min_length=1)
    arguments: str = Field(description="A JSON object. Anything else, such as the beginning of one, is shown as it is.")
    parsed_arguments: Any = CLIENT_ONLY  # of the openai package
    provider_specific_fields: Any = CLIENT_ONLY  # of litellm


class PastCall(StrictModel):
    only = ("function", 'calls of type "function"')

    id: str
    type: Literal["function"]
    function: PastFunction
    index: Any = CLIENT_ONLY  # as it came in a stream
    provider_specific_fields: Any = CLIENT_ONLY


# What OpenAI's responses have in an assistant message: clients append it to the conversation unchanged.
ASSISTANT_MESSAGE = {
    "refusal": IgnoredField(),
    "annotations": IgnoredField(([],)),
    "audio": IgnoredField(),
    "function_call": IgnoredField(),
}


class AssistantMessage(StrictModel):
    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
                {"required": ["tool_calls"], "properties": {"tool_calls": {"type": "array", "minItems": 1}}},
                {"required": ["reasoning_content"], "properties": {"reasoning_content": {"type": "string"}}},
                {"required": ["reasoning"], "properties": {"reasoning": {"type": "string"}}},
            ]
        }
    )

    role: Literal["assistant"]
    # Before the content, which is null where there are tool calls: only the first error is reported.
    tool_calls: Annotated[list[PastCall], Field(max_length=MAX_MEMBERS, fail_fast=True)] | None = Field(
        None, description="What the assistant called. Answered by messages of the role `tool`."
    )
    reasoning_content: str | None = Field(
        None, description="Extension. What the assistant thought, for chat templates that show it."
    )
    reasoning: str | None = Field(None, description="Extension. Another name of `reasoning_content`.")
    function_call: Annotated[Any, ASSISTANT_MESSAGE["function_call"]] = None
    audio: Annotated[Any, ASSISTANT_MESSAGE["audio"]] = None
    refusal: Annotated[Any, ASSISTANT_MESSAGE["refusal"]] = None
    annotations: Annotated[Any, ASSISTANT_MESSAGE["annotations"]] = None
    parsed: Any = CLIENT_ONLY
    thinking_blocks: Any = CLIENT_ONLY  # of litellm: `reasoning_content`, as Anthropic has it
    provider_specific_fields: Any = CLIENT_ONLY
    content: Content | None = Field(None, description="The text. May be left out beside tool calls or thoughts.")
    name: str | None = _NAME

    @model_validator(mode="after")
    def _check_content(self) -> AssistantMessage:
        if self.content is None and not self.tool_calls and self.reasoning_text is None:
            raise field_error("is required where there are no tool_calls", "content")
        if None not in (texts := (self.reasoning, self.reasoning_content)) and texts[0] != texts[1]:
            raise field_error("and reasoning_content, its other name, are not the same", "reasoning")
        return self

    @property
    def reasoning_text(self) -> str | None:
        return self.reasoning if self.reasoning_content is None else self.reasoning_content


class ToolMessage(StrictModel):
    role: Literal["tool"]
    content: Content = _CONTENT
    tool_call_id: str
    name: str | None = Field(None, description="Of the tool. Known from the call, where that is in the conversation.")


_ROLES = ("system", "developer", "user", "assistant", "tool")


class CustomMessage(StrictModel):
    """Of any other role that the model's chat template knows. The template decides: a role that it refuses or leaves
    out is an error."""

    role: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$", json_schema_extra={"not": {"enum": list(_ROLES)}})
    content: Content = _CONTENT
    name: str | None = _NAME


AnyMessage = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | CustomMessage, ByField("role")
]
Messages = NonEmptyList[AnyMessage]


class ChatTemplateFields(StrictModel):
    """How the chat template renders the messages."""

    add_generation_prompt: bool | None = Field(
        None,
        description="Extension. End the prompt with the beginning of an answer. "
        "Default: true, unless `continue_final_message` is set.",
    )
    continue_final_message: bool | None = Field(
        None, description="Extension. Let the model go on with the last message instead of beginning one of its own."
    )
    chat_template_kwargs: TemplateKwargs | None = Field(
        None, description="Extension. More variables for the model's chat template."
    )

    @model_validator(mode="after")
    def _check_ending(self) -> ChatTemplateFields:
        if self.add_generation_prompt and self.continue_final_message:
            raise field_error("and add_generation_prompt exclude each other", "continue_final_message")
        return self

    def template_options(self) -> dict[str, Any]:
        """Fields of flow.Request."""
        continue_message = bool(self.continue_final_message)
        return {
            "template_arguments": self.chat_template_kwargs or {},
            "continue_final_message": continue_message,
            "add_generation_prompt": not continue_message and self.add_generation_prompt is not False,
        }


def to_template(messages: list[AnyMessage]) -> list[Message]:
    return [_to_template(message) for message in messages]


def _to_template(message: AnyMessage) -> Message:
    shown: Message = {
        "role": "system" if message.role == "developer" else message.role,
        "content": join_text(message.content or ""),
    }
    if isinstance(message, ToolMessage):
        shown["tool_call_id"] = message.tool_call_id
    elif isinstance(message, AssistantMessage):
        if message.tool_calls:
            shown["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        if message.reasoning_text is not None:
            shown["reasoning_content"] = message.reasoning_text
    if message.name is not None:
        shown["name"] = message.name
    return shown
