"""Bodies of /v1/files and /v1/batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from pydantic import Field

from penstock.batch.records import Batch, Endpoint, Purpose, Status, StoredFile
from penstock.http.api.fields import StrictModel
from penstock.http.api.generation_fields import Metadata
from penstock.http.api.response_bodies import Body

MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 24 * 3600  # of files
COMPLETION_WINDOW: Literal["24h"] = "24h"

_encode = msgspec.json.Encoder().encode


# --- requests


class ExpiresAfter(StrictModel):
    anchor: Literal["created_at"] = Field(description="When the time begins: with the file.")
    seconds: int = Field(ge=MIN_LIFETIME_S, le=MAX_LIFETIME_S, description="An hour to 30 days.")


class BatchRequest(StrictModel):
    input_file_id: str = Field(description="A file of purpose `batch`: a line per request.")
    endpoint: Endpoint = Field(description="Where the requests go; the `url` of every line.")
    completion_window: Literal["24h"] = Field(description="What has not run by then ends as expired.")
    metadata: Metadata | None = Field(None, description="The client's own notes.")
    output_expires_after: ExpiresAfter | None = Field(
        None, description="When output and error file are deleted. Default: they stay."
    )


# --- responses


class FileObject(Body, kw_only=True, frozen=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"


class FileList(Body, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Body, kw_only=True, frozen=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchError(Body, kw_only=True, frozen=True):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(Body, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchRequestCounts(Body, kw_only=True, frozen=True):
    total: int
    completed: int
    failed: int


class BatchInputDetails(Body, kw_only=True, frozen=True):
    cached_tokens: int


class BatchOutputDetails(Body, kw_only=True, frozen=True):
    reasoning_tokens: int


class BatchUsage(Body, kw_only=True, frozen=True):
    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails
    total_tokens: int


class BatchObject(Body, kw_only=True, frozen=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"] = COMPLETION_WINDOW
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchRequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(Body, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


REQUESTS = (BatchRequest,)
ANSWERS = (FileObject, FileList, FileDeleted, BatchObject, BatchList)


def encode_file(file: StoredFile) -> bytes:
    return _encode(_file(file))


def encode_files(files: Sequence[StoredFile], *, more: bool) -> bytes:
    first, last = (files[0].id, files[-1].id) if files else (None, None)
    return _encode(FileList(data=[_file(file) for file in files], first_id=first, last_id=last, has_more=more))


def encode_deleted_file(name: str) -> bytes:
    return _encode(FileDeleted(id=name))


def encode_batch(batch: Batch) -> bytes:
    return _encode(_batch(batch))


def encode_batches(batches: Sequence[Batch], *, more: bool) -> bytes:
    first, last = (batches[0].id, batches[-1].id) if batches else (None, None)
    return _encode(BatchList(data=[_batch(batch) for batch in batches], first_id=first, last_id=last, has_more=more))


def _file(file: StoredFile) -> FileObject:
    fields = {name: value for name, value in msgspec.structs.asdict(file).items() if name != "tenant"}
    return FileObject(**fields)


def _batch(batch: Batch) -> BatchObject:
    errors = [BatchError(code=one.code, line=one.line, message=one.message, param=one.param) for one in batch.errors]
    usage = batch.usage
    plain = {
        name: getattr(batch, name)
        for name in BatchObject.__struct_fields__
        if name not in ("object", "completion_window", "errors", "request_counts", "usage")
    }
    return BatchObject(
        **plain,
        errors=BatchErrors(data=errors) if errors else None,
        request_counts=BatchRequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        usage=BatchUsage(
            input_tokens=usage.input_tokens,
            input_tokens_details=BatchInputDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.output_tokens,
            output_tokens_details=BatchOutputDetails(reasoning_tokens=usage.reasoning_tokens),
            total_tokens=usage.input_tokens + usage.output_tokens,
        ),
    )
