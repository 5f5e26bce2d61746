"""How large a model a request needs: signals of the parsed request, each worth a point.

    length       more than LONG_TEXT characters of prompt; a second point for more than VERY_LONG_TEXT
    code         a code fence, or lines that look like source code
    tools        the request offers tools
    schema       the output is constrained: a JSON schema, a grammar, a regex
    reasoning    the request asks for reasoning
    turns        more than MANY_TURNS messages
    output       more than LONG_OUTPUT tokens may be generated

A route of size classes lists its models from small to large. A request without points goes to the first, one point is
one model further, up to the last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from penstock.flow import Request

LONG_TEXT, VERY_LONG_TEXT = 2000, 8000  # characters
LONG_OUTPUT = 1024  # tokens
MANY_TURNS = 10
SEARCHED = 20_000  # characters that are searched for code: the end of the conversation, which is the question

_CODE = re.compile(
    r"```|^\s*(def |class |import |from \w+ import |function |const |let |public |private |#include|SELECT |fn |func )"
    r"|[;{}]\s*$",
    re.MULTILINE,
)
_CODE_LINES = 2  # matches: one may be prose


class SizeClass(msgspec.Struct, frozen=True):
    """How demanding a request is."""

    points: int
    signals: tuple[str, ...]

    def index(self, count: int) -> int:
        """Of the model, in a list of `count` from small to large."""
        return min(self.points, count - 1)

    @property
    def reason(self) -> str:
        if not self.signals:
            return "no signal of a hard request"
        return f"{self.points} point{'s' if self.points > 1 else ''} ({', '.join(self.signals)})"


def size_class(requests: Sequence[Request]) -> SizeClass:
    """Of all prompts of a client's request together."""
    signals: list[str] = []
    texts = [text for request in requests for text in _texts(request)]
    length = sum(map(len, texts))
    if length > LONG_TEXT:
        signals.append("length")
    if length > VERY_LONG_TEXT:
        signals.append("length")
    if is_code("\n".join(texts)[-SEARCHED:]):
        signals.append("code")
    if any(request.tools is not None for request in requests):
        signals.append("tools")
    if any(request.params.constraint is not None for request in requests):
        signals.append("schema")
    if any(request.enable_thinking or request.reasoning_effort not in (None, "none") for request in requests):
        signals.append("reasoning")
    if any(len(request.messages or ()) > MANY_TURNS for request in requests):
        signals.append("turns")
    if any((request.params.max_tokens or 0) > LONG_OUTPUT for request in requests):
        signals.append("output")
    return SizeClass(len(signals), tuple(signals))


def is_code(text: str) -> bool:
    """Whether a text has source code in it: a fence, or several lines that look like it."""
    if "```" in text:
        return True
    return sum(1 for _ in zip(range(_CODE_LINES), _CODE.finditer(text), strict=False)) == _CODE_LINES


def _texts(request: Request) -> list[str]:
    if request.messages is None:
        return [request.text or ""]
    return [text for message in request.messages if isinstance(text := message.get("content"), str)]
