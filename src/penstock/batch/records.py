"""Files, batches, lines and results. Times are seconds since 1970."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Literal, get_args

import msgspec

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Purpose = Literal["batch", "batch_output"]
End = Literal["completed", "expired", "cancelled"]  # the status behind finalizing or cancelling

ENDPOINTS: tuple[str, ...] = get_args(Endpoint)
UNFINISHED: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
WINDOW_S = 24 * 3600  # the completion window, "24h"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    purpose: Purpose
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None = None


class InputError(msgspec.Struct, frozen=True):
    """Why an input file was rejected. `line` counts from 1; None: it is about the whole file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class TokenUsage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    cached_tokens: int = 0  # of those
    output_tokens: int = 0
    reasoning_tokens: int = 0  # of those

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(*(mine + theirs for mine, theirs in zip(_astuple(self), _astuple(other), strict=True)))


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    key: str = ""  # the id of the API key whose scopes, models and limits hold for its lines
    endpoint: str
    input_file_id: str
    status: Status
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None  # lifetime of its output and error file; None: they stay
    model: str | None = None  # of all lines; None: of several
    errors: list[InputError] = []
    total: int = 0  # lines
    completed: int = 0
    failed: int = 0
    usage: TokenUsage = TokenUsage()
    end: End | None = None  # the status that finalizing leads to
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None


class Line(msgspec.Struct, frozen=True):
    """A request of an input file."""

    number: int  # from 1
    custom_id: str
    offset: int  # in the file
    size: int  # bytes
    model: str


class Result(msgspec.Struct, frozen=True):
    """Of a line that has run."""

    line: int
    output: bytes  # the line of the output or error file
    failed: bool
    usage: TokenUsage = TokenUsage()


class LineRequest(msgspec.Struct, frozen=True):
    """A line on its way to the model."""

    batch: Batch
    request_id: str
    body: bytes  # JSON
    line: int  # its number


class LeaseLost(Exception):
    """Another server works on the batch."""


class LineAnswer(msgspec.Struct, frozen=True):
    """What the routes answered to a line."""

    status: int
    body: bytes
    says_when: bool = False  # it has a Retry-After


# Answers a line as an interactive request is answered.
Dispatch = Callable[[LineRequest], Awaitable[LineAnswer]]


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(16)


def _astuple(usage: TokenUsage) -> tuple[int, ...]:
    return msgspec.structs.astuple(usage)
