"""Chat templates: a conversation and the model's own Jinja template give the prompt's text."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jinja2
import jinja2.meta

from penstock.errors import InvalidRequest, ModelInvalid
from penstock.flow import Message
from penstock.prompt.sandbox import Sandbox, TemplateStop, render

# Stands at the end of the final message while one that is to be continued is rendered; the prompt is cut there.
_CUT = "\ue000penstock-continue\ue001"


class ChatTemplate:
    """Compiled once, rendered per request; safe to use from several threads."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """`special_tokens` are the names templates know them by: bos_token, eos_token, ..."""
        self.source = source
        self.special_tokens = special_tokens
        try:
            self.compiled = Sandbox().from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:  # the latter two where it is nested deeply
            raise ModelInvalid(f"the model's chat template does not compile: {error}", param="model") from None

    @cached_property
    def variables(self) -> frozenset[str]:
        """What it asks for: messages and tools, and switches that a client may set."""
        return frozenset(jinja2.meta.find_undeclared_variables(Sandbox().parse(self.source)))

    def render(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message and add_generation_prompt exclude each other",
                    param="continue_final_message",
                )
            messages = [*messages[:-1], _marked(messages[-1])]
        text = self._run(
            {
                "documents": None,
                **(arguments or {}),
                **self.special_tokens,
                "messages": messages,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        if not continue_final_message:
            return text
        return _cut(text)

    def _run(self, variables: dict[str, Any]) -> str:
        try:
            return render(self.compiled, variables)
        except TemplateStop as error:
            raise InvalidRequest(
                f"the model's chat template rejects these messages: {error}", param="messages"
            ) from None
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template failed: {error}", param="messages") from None
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
            # A template's own mistake on messages of a shape it does not expect.
            raise InvalidRequest(f"the chat template cannot show these messages: {error}", param="messages") from None


def _marked(message: Message) -> Message:
    """A copy with the mark behind its text. The space behind the mark tells whether the template trims."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": f"{content}{_CUT} "}
    if isinstance(content, list):
        for index in range(len(content) - 1, -1, -1):
            if isinstance(content[index], dict) and isinstance(content[index].get("text"), str):
                part = {**content[index], "text": f"{content[index]['text']}{_CUT} "}
                return {**message, "content": [*content[:index], part, *content[index + 1 :]]}
    raise InvalidRequest("the final message has no text to continue", param="continue_final_message")


def _cut(text: str) -> str:
    place = text.rfind(_CUT)
    if place < 0:
        raise InvalidRequest(
            "the model's chat template does not show the final message, so it cannot be continued",
            param="continue_final_message",
        )
    kept_spaces = text.startswith(" ", place + len(_CUT))
    return text[:place] if kept_spaces else text[:place].rstrip()
