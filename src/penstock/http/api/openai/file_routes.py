"""The routes of files. Each tenant sees its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from penstock.batch.manager import BatchManager
from penstock.batch.protocol import BatchData
from penstock.batch.records import StoredFile, new_id
from penstock.errors import InvalidRequest, NotFound
from penstock.gateway.keys.identity import Scope
from penstock.http.api.openai import file_bodies
from penstock.http.error_body import ErrorBody
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import tenant_of
from penstock.http.openapi import schemas
from penstock.http.openapi.route_docs import route_docs
from penstock.http.page_origin import check_page_origin
from penstock.http.parse.multipart import FILE_FIELD, MultipartForm, receive_form
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.settings import Settings

PATH = "/v1/files"
NOT_FOUND = "No such file."
EXPIRES = "expires_after"
PORTION = 1 << 20  # bytes of a download that are read at once
FIELDS = ("purpose", f"{EXPIRES}[anchor]", f"{EXPIRES}[seconds]")

LIST = (
    Parameter(name="purpose", description="Only those of this purpose.", choices=("batch", "batch_output")),
    Parameter(name="after", description="The id of the file behind which to begin."),
    Parameter(name="limit", description="Most files of a page.", type="integer", bounds=(1, 10_000), default=10_000),
    Parameter(name="order", description="Oldest or newest first.", choices=("asc", "desc"), default="desc"),
)
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary", "minLength": 1},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                    "required": ["file", "purpose"],
                }
            }
        },
    }
}
STORAGE_ERRORS = {
    503: schemas.response(ErrorBody, "The folder of files is in use by another server, or cannot be used."),
}


def add(app: App, manager: BatchManager, settings: Settings) -> None:
    inference = app.requiring(Scope.INFERENCE)
    docs: dict[str, Any] = route_docs(None, file_bodies.FileObject, not_found=None, may_reject=True)
    docs["responses"] |= STORAGE_ERRORS | {
        403: schemas.response(ErrorBody, "A page of another origin sent the form."),
        413: schemas.response(ErrorBody, "The file is too large."),
        415: schemas.response(ErrorBody, "The body is not multipart/form-data."),
        507: schemas.response(ErrorBody, "The disk has no room for the file."),
    }

    @inference.post(PATH, **{**docs, "openapi_extra": _FORM})
    async def upload_file(request: Request) -> Response:
        """Upload the input file of a batch: `file` and `purpose=batch` as a multipart form. It expires after 30 days,
        or after `expires_after[seconds]` (with `expires_after[anchor]=created_at`)."""
        check_page_origin(request, settings)
        data = await manager.open()
        length, name = request.headers.get("content-length", ""), new_id("file-")
        await data.in_file_thread(data.contents.check_space, int(length) if length.isdecimal() else 0)
        draft = await data.in_file_thread(data.contents.new_draft, name)
        try:
            form = MultipartForm(request.headers.get("content-type", ""), lambda _, part: draft.write(part))
            await receive_form(request, form, data.in_file_thread)
            lifetime_s = _check_fields(form.fields)
            if not draft.size:
                raise InvalidRequest("the file is empty", param="file")
            filename = form.filenames[FILE_FIELD]
            if "\0" in filename:  # PostgreSQL takes no NUL
                raise InvalidRequest("the file name must not have NUL characters", param="file")
            await data.in_file_thread(draft.publish)
            file = await manager.add_file(
                tenant_of(request.scope), name=name, filename=filename, size=draft.size, lifetime_s=lifetime_s
            )
        finally:
            await data.in_file_thread(draft.close)
        return json_response(file_bodies.encode_file(file))

    list_docs = route_docs(None, file_bodies.FileList, not_found=None, may_reject=True, parameters=LIST)
    list_docs["responses"] |= STORAGE_ERRORS

    @inference.get(PATH, **list_docs)
    async def list_files(request: Request) -> Response:
        """The files that were uploaded, and those that batches have written."""
        files, more = await manager.files(tenant_of(request.scope), **read_query(request, LIST))
        return json_response(file_bodies.encode_files(files, more=more))

    _add_single(app, manager)


def _add_single(app: App, manager: BatchManager) -> None:
    inference = app.requiring(Scope.INFERENCE)
    docs = route_docs(None, file_bodies.FileObject, not_found=NOT_FOUND)
    docs["responses"] |= STORAGE_ERRORS

    @inference.get(f"{PATH}/{{file_id}}", **docs)
    async def retrieve_file(request: Request, file_id: str) -> Response:
        """One file, without its content."""
        return json_response(file_bodies.encode_file(await manager.file(tenant_of(request.scope), file_id)))

    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    content_docs = route_docs(None, file_bodies.FileObject, not_found=NOT_FOUND)
    content_docs["responses"] |= STORAGE_ERRORS | {200: {"description": "The content.", "content": content}}

    @inference.get(f"{PATH}/{{file_id}}/content", **content_docs)
    async def retrieve_file_content(request: Request, file_id: str) -> Response:
        """The content of a file: of a batch's output, a line per request."""
        file = await manager.file(tenant_of(request.scope), file_id)
        data, kind = await manager.open(), "application/octet-stream"
        path = data.contents.local_path(file.id)
        if path is not None and path.exists():
            return FileResponse(path, media_type=kind, filename=file.filename)
        try:
            first = await data.in_file_thread(data.contents.read, file.id, 0, PORTION)
        except FileNotFoundError:  # it has expired this moment
            raise NotFound(f"there is no file {file_id[:64]!r}", param="file_id") from None
        quoted = quote(file.filename, safe="")
        headers = {"content-length": str(file.bytes), "content-disposition": f"attachment; filename*=utf-8''{quoted}"}
        return StreamingResponse(_portions(data, file, first), media_type=kind, headers=headers)

    deleted = route_docs(None, file_bodies.FileDeleted, not_found=NOT_FOUND)
    deleted["responses"] |= STORAGE_ERRORS

    @inference.delete(f"{PATH}/{{file_id}}", **deleted)
    async def delete_file(request: Request, file_id: str) -> Response:
        """Delete a file. An unfinished batch that reads it goes on."""
        await manager.delete_file(tenant_of(request.scope), file_id)
        return json_response(file_bodies.encode_deleted_file(file_id))


async def _portions(data: BatchData, file: StoredFile, first: bytes) -> AsyncIterator[bytes]:
    yield first
    for offset in range(len(first), file.bytes, PORTION):
        yield await data.in_file_thread(data.contents.read, file.id, offset, PORTION)


def _check_fields(fields: dict[str, str]) -> int:
    """Returns the file's lifetime in seconds."""
    for name in fields:
        if name not in FIELDS:
            raise InvalidRequest(f"{name} is not a known field; known are file, {', '.join(FIELDS)}", param=name)
    if "purpose" not in fields:
        raise InvalidRequest("purpose is required", param="purpose")
    if fields["purpose"] != "batch":
        raise InvalidRequest(f"purpose must be batch, got {fields['purpose'][:64]!r}", param="purpose")
    anchor, seconds = fields.get(FIELDS[1]), fields.get(FIELDS[2])
    if anchor is None and seconds is None:
        return file_bodies.MAX_LIFETIME_S
    if anchor != "created_at":
        raise InvalidRequest(f"{FIELDS[1]} must be created_at", param=FIELDS[1])
    low, high = file_bodies.MIN_LIFETIME_S, file_bodies.MAX_LIFETIME_S
    text = seconds or ""
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
        raise InvalidRequest(f"{FIELDS[2]} must be an integer from {low} to {high}", param=FIELDS[2])
    return int(text)
