"""Chat templates: a conversation and the model's own Jinja template give the prompt's text.

A rendering that is cheap happens here and now. One that turns out not to be begins anew in a process that is killed if
it takes too long (`worker`).
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import jinja2.meta

from penstock.errors import InvalidRequest
from penstock.flow import Message
from penstock.prompt.bounded_render import cheap_work, compiled, run
from penstock.prompt.sandbox import Sandbox
from penstock.prompt.template_meter import OutOfWork
from penstock.system.killable_process import Crashed, HelperProcess, OutOfTime

RENDER_LIMIT_S = 5.0  # of CPU time
MEMORY_BYTES = 512 << 20

# Stands at the end of the final message while one that is to be continued is rendered; the prompt is cut there.
_CUT = "\ue000penstock-continue\ue001"


class NeedsRenderProcess(Exception):
    """This rendering has to wait for another process: ask again from a thread that may wait."""


class ChatTemplate:
    """Compiled once, rendered per request; safe to use from several threads."""

    def __init__(self, source: str, special_tokens: dict[str, str], *, limit_s: float = RENDER_LIMIT_S) -> None:
        """`special_tokens` are the names templates know them by: bos_token, eos_token, ..."""
        self.source = source
        self.special_tokens = special_tokens
        self.compiled = compiled(source)
        self._limit_s = limit_s
        self._helper = HelperProcess(
            "penstock.prompt.render_process",
            json.dumps(source).encode(),
            cpu_limit_s=limit_s,
            memory_bytes=MEMORY_BYTES,
        )

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
        may_wait: bool = True,
    ) -> str:
        """Raises NeedsRenderProcess instead of waiting for another process, unless it `may_wait`."""
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message and add_generation_prompt exclude each other",
                    param="continue_final_message",
                )
            messages = [*messages[:-1], _marked(messages[-1])]
        variables = {
            "documents": None,
            **(arguments or {}),
            **self.special_tokens,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(variables, may_wait=may_wait)
        return _cut(text) if continue_final_message else text

    def close(self) -> None:
        """End the process, if there is one."""
        self._helper.close()

    def _run(self, variables: dict[str, Any], *, may_wait: bool) -> str:
        try:
            return run(self.compiled, variables, cheap_work(variables))
        except InvalidRequest as error:
            if not isinstance(error.__cause__, OutOfWork):
                raise
        if not may_wait:
            raise NeedsRenderProcess
        return self._run_elsewhere(variables)

    def _run_elsewhere(self, variables: dict[str, Any]) -> str:
        try:
            question = json.dumps(variables).encode()
        except (TypeError, ValueError, RecursionError) as error:  # in a library: HTTP brings nothing else
            raise InvalidRequest(f"messages must be of what JSON can hold: {error}", param="messages") from None
        try:
            answer = self._helper.ask(question)
        except OutOfTime:
            why = f"it takes more than {self._limit_s:g} s"
        except Crashed:
            why = "it takes too much memory"
        else:
            rendered: dict[str, str] = json.loads(answer)
            if "text" in rendered:
                return rendered["text"]
            raise InvalidRequest(rendered["error"], param="messages")
        raise InvalidRequest(f"the chat template failed: {why}", param="messages")


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
