"""Checks the lines of an input file, before any of them runs. One wrong line fails the batch, with an error for each
wrong line; what is wrong inside a line's body fails that line alone, when it runs.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "smollm2", …}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

from penstock.batch.records import InputError, Line
from penstock.errors import PenstockError
from penstock.system import typed

MAX_LINES = 50_000
MAX_CUSTOM_ID = 512  # characters
MAX_ERRORS = 100
FIELDS = ("custom_id", "method", "url", "body")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

FindModel = Callable[[str], str]  # the model of a name or alias; raises a PenstockError if there is none


class BodyHead(msgspec.Struct):
    """The fields of a body that are checked here."""

    model: Any = None
    stream: Any = None


class LineError(Exception):
    """What is wrong with a line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


class InputFile:
    """The lines of a file and its errors. Reads the file once, when it is made; it blocks."""

    def __init__(self, file: BinaryIO, endpoint: str, *, max_line: int, find_model: FindModel) -> None:
        """`max_line` is in bytes, as of a request body."""
        self.lines: list[Line] = []
        self.errors: list[InputError] = []
        self._endpoint = endpoint
        self._find_model = find_model
        self._seen: set[str] = set()
        self._models: dict[str, str | LineError] = {}  # by the names that lines use
        for number, offset, raw in _raw_lines(file, max_line):
            if number > MAX_LINES:
                self.errors.append(InputError("too_many_requests", f"the file has more than {MAX_LINES} lines"))
                break
            try:
                if len(raw) > max_line:
                    raise LineError("line_too_long", f"the line is longer than {max_line} bytes")
                self.lines.append(self._line(number, offset, raw))
            except LineError as error:
                self.errors.append(InputError(error.code, error.message, error.param, number))
            if len(self.errors) >= MAX_ERRORS:
                break
        if not self.lines and not self.errors:
            self.errors.append(InputError("empty_file", "the file has no lines"))

    @property
    def model(self) -> str | None:
        """That of all lines; None if there are several."""
        models = {model for model in self._models.values() if isinstance(model, str)}
        return models.pop() if len(models) == 1 else None

    def _line(self, number: int, offset: int, raw: bytes) -> Line:
        fields = _decode(raw)
        custom_id = _text(fields, "custom_id")
        if not 0 < len(custom_id) <= MAX_CUSTOM_ID:
            raise LineError("invalid_custom_id", f"custom_id must have 1 to {MAX_CUSTOM_ID} characters", "custom_id")
        if "\0" in custom_id:  # PostgreSQL takes no NUL
            raise LineError("invalid_custom_id", "custom_id must not have NUL characters", "custom_id")
        if custom_id in self._seen:
            raise LineError(
                "duplicate_custom_id", f"custom_id {custom_id[:64]!r} is that of an earlier line", "custom_id"
            )
        self._seen.add(custom_id)
        if (method := _text(fields, "method")) != "POST":
            raise LineError("invalid_method", f"method must be POST, got {method[:64]!r}", "method")
        if (url := _text(fields, "url")) != self._endpoint:
            raise LineError("invalid_url", f"url is {url[:64]!r}, but the batch's endpoint is {self._endpoint}", "url")
        return Line(number, custom_id, offset, len(raw), self._model(bytes(fields["body"])))

    def _model(self, body: bytes) -> str:
        if not body.startswith(b"{"):
            raise LineError("invalid_body", "body must be an object", "body")
        try:
            head = typed.decode_json(body, BodyHead)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LineError("invalid_body", f"body is not valid JSON: {error}", "body") from None
        if head.stream not in (None, False):
            raise LineError("invalid_body", "stream must be false in a batch", "body.stream")
        if not isinstance(head.model, str):
            raise LineError("missing_required_parameter", "body.model is required, and a string", "body.model")
        if head.model not in self._models:
            try:
                self._models[head.model] = self._find_model(head.model)
            except PenstockError as error:
                self._models[head.model] = LineError(error.code, error.message, "body.model")
        found = self._models[head.model]
        if isinstance(found, LineError):
            raise found
        return found


def body_of(raw: bytes) -> bytes:
    """The body of a line, as JSON."""
    return bytes(_decode(raw)["body"])


def _decode(raw: bytes) -> dict[str, msgspec.Raw]:
    try:
        fields = typed.decode_json(raw, dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise LineError("invalid_json_line", "the line is not a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError("invalid_json_line", f"the line is not valid JSON: {error}") from None
    for name in FIELDS:
        if name not in fields:
            raise LineError("missing_required_parameter", f"{name} is required", name)
    if unknown := next((name for name in fields if name not in FIELDS), None):
        raise LineError("unknown_parameter", f"{unknown[:64]} is not a field of a line", unknown[:64])
    return fields


def _text(fields: dict[str, msgspec.Raw], name: str) -> str:
    try:
        return typed.decode_json(fields[name], str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LineError("invalid_parameter", f"{name} must be a string", name) from None


def _raw_lines(file: BinaryIO, max_line: int) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of lines that are not blank; of one longer than `max_line`, the beginning."""
    number, offset = 0, 0
    while raw := file.readline(max_line + 2):
        number += 1
        begin, size = offset, len(raw)
        rest = raw
        while not rest.endswith(b"\n") and (rest := file.readline(1 << 20)):
            size += len(rest)
        offset += size
        if number == 1 and raw.startswith(BYTE_ORDER_MARK):
            begin, raw = len(BYTE_ORDER_MARK), raw.removeprefix(BYTE_ORDER_MARK)
        raw = raw.rstrip(b"\r\n")
        if raw.strip():
            yield number, begin, raw
