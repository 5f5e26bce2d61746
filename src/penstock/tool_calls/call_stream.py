"""The tool calls of one response, numbered and passed on as CallDeltas while they are parsed."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from penstock.flow import CallDelta
from penstock.tool_calls.text_buffer import Malformed


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class CallStream:
    """A parser reports to it: `begin`, then `name` and `arguments` in either order; arguments may come in pieces."""

    def __init__(self, emit: Callable[[CallDelta], None], make_id: Callable[[], str]) -> None:
        self._emit = emit
        self._make_id = make_id
        self.count = 0
        self.named = False  # the name of the current call is known
        self._early_arguments: list[str] = []  # that came before the name

    def begin(self) -> None:
        self.named = False
        self._early_arguments = []

    def name(self, name: str) -> None:
        if self.named or not name:
            raise Malformed
        self.named = True
        self.count += 1
        self._emit(CallDelta(index=self.count - 1, id=self._make_id(), name=name))
        self.arguments("".join(self._early_arguments))

    def arguments(self, text: str) -> None:
        if not self.named:
            self._early_arguments.append(text)
        elif text:
            self._emit(CallDelta(index=self.count - 1, arguments=text))
