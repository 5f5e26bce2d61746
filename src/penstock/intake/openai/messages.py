"""The messages of a conversation, and how chat templates get to see them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from penstock.flow import Message
from penstock.intake.openai.fields import PARTS, STRING, Strict, TemplateKwargs, shaped, wrong
from penstock.intake.openai.neutral import ASSISTANT_MESSAGE


class TextPart(Strict):
    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        """Runs before the names are checked: those of an image are unknown here, but it is the type that is wrong."""
        if isinstance(value, dict) and isinstance(kind := value.get("type"), str) and kind != "text":
            raise wrong(f'is "{kind[:64]}", which is not supported: only parts of type "text" are', "type")
        return value


def _text_or_parts(value: Any) -> str | None:
    return STRING if isinstance(value, str) else PARTS if isinstance(value, list) else None


Content = Annotated[
    Annotated[str, Tag(STRING)] | Annotated[list[TextPart], Field(min_length=1, fail_fast=True), Tag(PARTS)],
    shaped(_text_or_parts, "a string or a list of text parts"),
]
_NAME = Field(None, description="Who speaks. Given to the chat template, which may show it or not.")
_CONTENT = Field(description="The text, whole or in parts; parts are joined by line breaks.")


class SystemMessage(Strict):
    role: Literal["system"]
    content: Content = _CONTENT
    name: str | None = _NAME


class DeveloperMessage(Strict):
    """The same as a system message: chat templates know only those."""

    role: Literal["developer"]
    content: Content = _CONTENT
    name: str | None = _NAME


class UserMessage(Strict):
    role: Literal["user"]
    content: Content = _CONTENT
    name: str | None = _NAME


class AssistantMessage(Strict):
    role: Literal["assistant"]
    # Ahead of the content, which is null where there are tool calls: the first error is the one a client is told.
    tool_calls: Annotated[Any, ASSISTANT_MESSAGE["tool_calls"]] = None
    function_call: Annotated[Any, ASSISTANT_MESSAGE["function_call"]] = None
    audio: Annotated[Any, ASSISTANT_MESSAGE["audio"]] = None
    refusal: Annotated[Any, ASSISTANT_MESSAGE["refusal"]] = None
    annotations: Annotated[Any, ASSISTANT_MESSAGE["annotations"]] = None
    content: Content = _CONTENT
    name: str | None = _NAME


class ToolMessage(Strict):
    role: Literal["tool"]
    content: Content = _CONTENT
    tool_call_id: str


AnyMessage = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]
Messages = Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)]
ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))


class Templated(Strict):
    """How the chat template is to make a text of the messages."""

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
    def _check_ending(self) -> Templated:
        if self.add_generation_prompt and self.continue_final_message:
            raise wrong("and add_generation_prompt exclude each other", "continue_final_message")
        return self

    def template_options(self) -> dict[str, Any]:
        """As fields of flow.Request."""
        going_on = bool(self.continue_final_message)
        return {
            "template_arguments": self.chat_template_kwargs or {},
            "continue_final_message": going_on,
            "add_generation_prompt": not going_on and self.add_generation_prompt is not False,
        }


def to_template(messages: list[AnyMessage]) -> list[Message]:
    return [_to_template(message) for message in messages]


def _to_template(message: AnyMessage) -> Message:
    content = message.content
    shown: Message = {
        "role": "system" if message.role == "developer" else message.role,
        "content": content if isinstance(content, str) else "\n".join([part.text for part in content]),
    }
    if isinstance(message, ToolMessage):
        shown["tool_call_id"] = message.tool_call_id
    elif message.name is not None:
        shown["name"] = message.name
    return shown
