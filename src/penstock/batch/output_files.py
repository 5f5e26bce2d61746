"""The lines of output and error files, and the files themselves."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.batch.protocol import FileContents
from penstock.batch.records import Batch, End, StoredFile, TokenUsage, new_id
from penstock.flow.json_lines import escape_separators
from penstock.system import typed

if TYPE_CHECKING:
    from penstock.batch.store import BatchStore

# Why a line has not run, by the end of its batch.
NOT_RUN: dict[End, tuple[str, str]] = {
    "completed": ("internal_error", "the request was not executed"),
    "expired": ("batch_expired", "the request could not be executed before the completion window expired"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before the request was executed"),
}


class LineResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True):
    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None


def output_line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """Of a request that was answered, rightly or with an error."""
    if b"\n" in body:
        body = msgspec.json.encode(msgspec.json.decode(body))
    response = LineResponse(status, request_id, msgspec.Raw(body))
    return _line(OutputLine(new_id("batch_req_"), custom_id, response, None))


def error_line(custom_id: str, code: str, message: str) -> bytes:
    """Of a request without an answer."""
    return _line(OutputLine(new_id("batch_req_"), custom_id, None, LineError(code, message)))


def _line(line: OutputLine) -> bytes:
    return escape_separators(msgspec.json.encode(line)) + b"\n"


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """In the names of chat completions and of responses."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


def usage_of(body: bytes) -> TokenUsage:
    """What a response says that it has used."""
    try:
        usage = typed.decode_json(body, _Answer).usage
    except msgspec.DecodeError:
        return TokenUsage()
    if usage is None:
        return TokenUsage()
    input_details = usage.prompt_tokens_details or usage.input_tokens_details or _InputDetails()
    output_details = usage.completion_tokens_details or usage.output_tokens_details or _OutputDetails()
    return TokenUsage(
        usage.prompt_tokens or usage.input_tokens or 0,
        input_details.cached_tokens or 0,
        usage.completion_tokens or usage.output_tokens or 0,
        output_details.reasoning_tokens or 0,
    )


def write_files(batch: Batch, store: BatchStore, contents: FileContents, now: int) -> tuple[StoredFile | None, ...]:
    """The output file and the error file of a batch, published but not yet stored; None for one without lines.
    Lines that have not run are errors."""
    assert batch.end is not None
    code, message = NOT_RUN[batch.end]
    names = (new_id("file-"), new_id("file-"))
    with closing(contents.new_draft(names[0])) as output, closing(contents.new_draft(names[1])) as errors:
        for _, custom_id, line, failed in store.results(batch.id):
            if line is None:
                errors.write(error_line(custom_id, code, message))
            else:
                (errors if failed else output).write(line)
        files: list[StoredFile | None] = []
        for name, draft, kind in zip(names, (output, errors), ("output", "error"), strict=True):
            if not draft.size:
                files.append(None)
                continue
            draft.publish()
            files.append(_file(batch, name, kind, draft.size, now))
    return tuple(files)


def _file(batch: Batch, name: str, kind: str, size: int, now: int) -> StoredFile:
    fields: dict[str, Any] = {"tenant": batch.tenant, "purpose": "batch_output", "created_at": now, "bytes": size}
    expires_at = None if batch.output_expires_s is None else now + batch.output_expires_s
    return StoredFile(id=name, filename=f"{batch.id}_{kind}.jsonl", expires_at=expires_at, **fields)
