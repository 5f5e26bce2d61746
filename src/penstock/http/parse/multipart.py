"""Reads a multipart/form-data body: files go to disk as they come, small fields are kept."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.requests import Request

from penstock.errors import InvalidRequest, MediaTypeUnsupported

FILE_FIELD = "file"
MAX_FIELDS = 16
MAX_FIELD_BYTES = 1024
MAX_FILENAME = 255  # characters
PIECE = 1 << 18  # bytes that are parsed and written at once, in a thread
_BOUNDARY = re.compile(r"[\x20-\x7e]{1,70}")  # RFC 2046


class MultipartForm:
    """Blocks while it writes: `feed` belongs into a thread. Raises InvalidRequest for what is not a form."""

    def __init__(
        self, content_type: str, write: Callable[[str, bytes], None], files: Collection[str] = (FILE_FIELD,)
    ) -> None:
        """`write` gets the name and the bytes of the fields that are `files`."""
        from python_multipart.multipart import MultipartParser, parse_options_header  # for the few that upload

        self._parse_options = parse_options_header
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data":
            found = f", not as {kind.decode(errors='replace')[:64]}" if kind else ""
            raise MediaTypeUnsupported(f"send the file as multipart/form-data{found}")
        boundary = options.get(b"boundary", b"").decode("latin-1")
        if not _BOUNDARY.fullmatch(boundary):
            raise InvalidRequest("the content-type has no valid boundary")
        self.fields: dict[str, str] = {}
        self.filenames: dict[str, str] = {}  # of the files that have come, by field
        self.complete = False
        self._write, self._files = write, files
        self._name = ""  # of the part that is being read
        self._value = bytearray()
        self._header = self._header_value = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_header,
                "on_header_value": self._add_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> None:
        from python_multipart.exceptions import FormParserError

        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest(f"the body is not a valid multipart form: {error}") from None

    def finish(self) -> None:
        """After the last byte. Raises InvalidRequest for a form that is cut off or has no file."""
        if not self.complete:
            raise InvalidRequest("the multipart form is incomplete")
        if not self.filenames:
            wanted = next(iter(self._files))
            raise InvalidRequest(f"{wanted} is required", param=wanted)

    # --- the parser's callbacks

    def _begin_part(self) -> None:
        self._name, self._value = "", bytearray()

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = self._parse_options(self._header_value)
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            if self._name in self._files:
                if self._name in self.filenames:
                    raise InvalidRequest(f"there is more than one {self._name}", param=self._name)
                self.filenames[self._name] = _clean_filename(options.get(b"filename", b""))
        self._header = self._header_value = b""

    def _end_headers(self) -> None:
        if not self._name:
            raise InvalidRequest("a part of the form has no name")
        if len(self.fields) >= MAX_FIELDS:
            raise InvalidRequest(f"the form has more than {MAX_FIELDS} fields")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._name in self._files:
            self._write(self._name, data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            shown = self._name[:64]
            raise InvalidRequest(f"{shown} is longer than {MAX_FIELD_BYTES} bytes", param=shown)

    def _end_part(self) -> None:
        if self._name not in self._files:
            shown = self._name[:64]
            if shown in self.fields:
                raise InvalidRequest(f"the form has {shown} twice", param=shown)
            self.fields[shown] = self._value.decode("utf-8", "replace")

    def _end(self) -> None:
        self.complete = True


async def receive_form(request: Request, form: MultipartForm, in_thread: Callable[..., Awaitable[Any]]) -> None:
    """Reads the whole body; the event loop only passes it on."""
    pieces, size = list[bytes](), 0
    async for data in request.stream():
        pieces.append(data)
        size += len(data)
        if size >= PIECE:
            await in_thread(form.feed, b"".join(pieces))
            pieces, size = [], 0
    await in_thread(form.feed, b"".join(pieces))
    form.finish()


def _clean_filename(name: bytes) -> str:
    """The last part of the path, as text to show. Nothing on disk has this name."""
    text = re.split(r"[/\\]", name.decode("utf-8", "replace"))[-1]
    return "".join(character for character in text if character.isprintable())[:MAX_FILENAME] or "upload"
