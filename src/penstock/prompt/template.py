"""The model's chat template: renders messages to the prompt's text.

Cheap renderings happen in the calling thread. One that exceeds the small budget starts again in a process that is
killed if it takes too long (`render_process`).
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import jinja2.meta

from penstock.errors import InvalidRequest
from penstock.flow import Message
from penstock.prompt.bounded_render import cheap_budget, compile_template, render_bounded
from penstock.prompt.sandbox import Sandbox
from penstock.prompt.template_meter import BudgetExceeded
from penstock.system.killable_process import Crashed, HelperProcess, OutOfTime

RENDER_LIMIT_S = 5.0  # of CPU time
MEMORY_BYTES = 512 << 20
DUMP_PIECE = 1 << 18  # characters: a millisecond or two

# Put behind the final message if that is to be continued; the prompt is cut there.
_CUT = "\ue000penstock-continue\ue001"


class NeedsRenderProcess(Exception):
    """The rendering is not cheap: render again from a thread that may wait for the render process."""


class ChatTemplate:
    """Compiled once, rendered per request; thread-safe."""

    def __init__(self, source: str, special_tokens: dict[str, str], *, limit_s: float = RENDER_LIMIT_S) -> None:
        """`special_tokens`: by the names of template variables, bos_token, eos_token, ..."""
        self.source = source
        self.special_tokens = special_tokens
        self.compiled = compile_template(source)
        self._limit_s = limit_s
        self._helper = HelperProcess(
            "penstock.prompt.render_process",
            json.dumps(source).encode(),
            cpu_limit_s=limit_s,
            memory_bytes=MEMORY_BYTES,
        )

    @cached_property
    def variables(self) -> frozenset[str]:
        """Variables that the template reads: messages, tools, and others that a client may set."""
        return frozenset(jinja2.meta.find_undeclared_variables(Sandbox().parse(self.source)))

    def render(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        arguments: dict[str, Any] | None = None,
        may_wait: bool = True,
    ) -> str:
        """`may_wait`: wait for the render process if necessary, instead of raising NeedsRenderProcess."""
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message and add_generation_prompt exclude each other",
                    param="continue_final_message",
                )
            messages = [*messages[:-1], _append_marker(messages[-1])]
        variables = {
            "documents": None,
            **(arguments or {}),
            **self.special_tokens,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render(variables, may_wait=may_wait)
        return _cut(text) if continue_final_message else text

    def close(self) -> None:
        """End the render process, if there is one."""
        self._helper.close()

    def _render(self, variables: dict[str, Any], *, may_wait: bool) -> str:
        try:
            return render_bounded(self.compiled, variables, cheap_budget(variables))
        except InvalidRequest as error:
            if not isinstance(error.__cause__, BudgetExceeded):
                raise
        if not may_wait:
            raise NeedsRenderProcess
        return self._render_in_process(variables)

    def _render_in_process(self, variables: dict[str, Any]) -> str:
        try:
            question = _dump(variables).encode()
        except (TypeError, ValueError, RecursionError) as error:  # only from library users: HTTP bodies are JSON
            raise InvalidRequest(f"messages must be JSON: {error}", param="messages") from None
        try:
            answer = self._helper.ask(question)
        except OutOfTime:
            reason = f"it takes more than {self._limit_s:g} s"
        except Crashed:
            reason = "it takes too much memory"
        else:
            rendered: dict[str, str] = json.loads(answer)
            if "text" in rendered:
                return rendered["text"]
            raise InvalidRequest(rendered["error"], param="messages")
        raise InvalidRequest(f"the chat template failed: {reason}", param="messages")


def _dump(value: Any) -> str:
    """`json.dumps`, long strings in pieces: one call for a long text would hold the interpreter, and so the event loop,
    for a tenth of a second."""
    if isinstance(value, str) and len(value) > DUMP_PIECE:
        pieces = (value[begin : begin + DUMP_PIECE] for begin in range(0, len(value), DUMP_PIECE))
        return f'"{"".join(json.dumps(piece)[1:-1] for piece in pieces)}"'
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return f"{{{', '.join(f'{_dump(name)}: {_dump(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_dump, value))}]"
    return json.dumps(value)


def _append_marker(message: Message) -> Message:
    """A copy with the marker behind its text. The space behind the marker shows whether the template trims."""
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
