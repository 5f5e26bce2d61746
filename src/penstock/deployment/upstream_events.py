"""The answers of an OpenAI-compatible server: whole or as events, decoded leniently, since servers differ in what they
leave out. Anything that is not an answer at all raises UpstreamFailed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.deployment.upstream_usage import ReportedUsage
from penstock.errors import UpstreamFailed
from penstock.system import typed

MAX_LINE = 4 << 20  # bytes of one event


class CalledFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: CalledFunction | None = None


class Piece(msgspec.Struct):
    """A message or a part of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # its other name
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None


class TopToken(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class ScoredToken(TopToken):
    top_logprobs: list[TopToken] | None = None


class Logprobs(msgspec.Struct):
    """Of a chat, or of a completion."""

    content: list[ScoredToken] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None

    def scored(self) -> list[ScoredToken]:
        if self.content is not None:
            return self.content
        texts, values, tops = self.tokens or [], self.token_logprobs or [], self.top_logprobs or []
        return [
            ScoredToken(
                text,
                (values[place] if place < len(values) else None) or 0.0,
                top_logprobs=[TopToken(*pair) for pair in ((tops[place] if place < len(tops) else None) or {}).items()],
            )
            for place, text in enumerate(texts)
        ]


class AnswerChoice(msgspec.Struct):
    index: int = 0
    delta: Piece | None = None
    message: Piece | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: Logprobs | None = None


class AnswerEvent(msgspec.Struct):
    """One event of a stream, or a whole answer."""

    choices: list[AnswerChoice] = []
    model: str | None = None
    usage: ReportedUsage | None = None
    error: Any = None


class ErrorDetail(msgspec.Struct):
    message: str = ""
    param: str | None = None
    code: str | int | None = None


class _ErrorBody(msgspec.Struct):
    error: ErrorDetail | str | None = None
    message: str | None = None


_decode = typed.json_decoder(AnswerEvent).decode
_decode_error = typed.json_decoder(_ErrorBody).decode


def decode_answer(data: bytes) -> AnswerEvent:
    try:
        event = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamFailed(f"it sent an invalid answer: {str(error)[:200]}") from None
    if event.error is not None:
        raise UpstreamFailed(f"it failed: {error_detail(data).message[:300] or 'without a message'}")
    return event


def error_detail(body: bytes) -> ErrorDetail:
    """What an error response says, in whichever of the usual forms."""
    try:
        found = _decode_error(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorDetail()
    if isinstance(found.error, ErrorDetail):
        return found.error
    return ErrorDetail(found.error or found.message or "")


class EventReader:
    """Bytes of a stream of server-sent events in, events out. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False  # `[DONE]` was read

    def push(self, data: bytes) -> Iterator[AnswerEvent]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise UpstreamFailed(f"it sent an event of more than {MAX_LINE} bytes")
        for line in lines:
            if not line.startswith(b"data:"):
                if line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                    raise UpstreamFailed(f"it sent an invalid event: {line[:80]!r}")
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.ended = True
            elif payload and not self.ended:
                yield decode_answer(payload)
