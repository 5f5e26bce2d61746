from __future__ import annotations

import pytest

from penstock.errors import InvalidRequest, MediaTypeUnsupported, PenstockError
from penstock.http.parse.multipart import MAX_FIELDS, MultipartForm

TYPE = "multipart/form-data; boundary=edge"
PURPOSE = b'--edge\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
END = b"\r\n--edge--\r\n"


def read(body: bytes, content_type: str = TYPE, piece: int = 1000) -> tuple[MultipartForm, bytes]:
    written = bytearray()
    form = MultipartForm(content_type, lambda _, data: written.extend(data))
    for begin in range(0, len(body), piece):
        form.feed(body[begin : begin + piece])
    form.finish()
    return form, bytes(written)


@pytest.mark.parametrize("piece", [1, 7, 1000])
@pytest.mark.parametrize("content", [b"", b"{}\n{}", b"\r\n--edg\r\n--", bytes(range(256)) * 3])
def test_the_file_and_the_fields_are_found_in_any_pieces(piece: int, content: bytes) -> None:
    form, written = read(PURPOSE + FILE + content + END, piece=piece)
    assert (form.fields, form.filenames, written) == ({"purpose": "batch"}, {"file": "in.jsonl"}, content)


def test_the_order_does_not_matter() -> None:
    form, written = read(FILE + b"x\r\n" + PURPOSE.rstrip() + END)
    assert (form.fields, written) == ({"purpose": "batch"}, b"x")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("a\\b.jsonl", "b.jsonl"),
        ("\x07bell", "bell"),
        ("größe 数.jsonl", "größe 数.jsonl"),
        ("", "upload"),
        ("x" * 999, "x" * 255),
    ],
)
def test_a_filename_is_only_a_name(given: str, shown: str) -> None:
    form, _ = read(FILE.replace(b"in.jsonl", given.encode()) + b"x" + END)
    assert form.filenames == {"file": shown}


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b"{}", "application/json", "send the file as multipart/form-data, not as application/json"),
        (b"{}", "", "send the file as multipart/form-data"),
        (b"", "multipart/form-data", "no valid boundary"),
        (b"", f"multipart/form-data; boundary={'x' * 71}", "no valid boundary"),
        (b"", TYPE, "incomplete"),
        (b"something else", TYPE, "not a valid multipart form"),
        (FILE + b"cut off", TYPE, "incomplete"),
        (PURPOSE.rstrip() + END, TYPE, "file is required"),
        (FILE + b"x\r\n" + FILE + b"y" + END, TYPE, "more than one file"),
        (PURPOSE + PURPOSE + FILE + b"x" + END, TYPE, "has purpose twice"),
        (PURPOSE.replace(b"batch", b"b" * 2000) + FILE + b"x" + END, TYPE, "purpose is longer than 1024 bytes"),
        (b"--edge\r\ncontent-disposition: form-data\r\n\r\nx" + END, TYPE, "has no name"),
        (b"--edge\r\n" + b"x" * 10_000 + b": y\r\n\r\nx" + END, TYPE, "not a valid multipart form"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message) as caught:
        read(body, content_type)
    assert isinstance(caught.value, InvalidRequest | MediaTypeUnsupported)


def test_fields_are_bounded() -> None:
    many = b"".join(PURPOSE.replace(b'"purpose"', b'"f%d"' % index) for index in range(MAX_FIELDS + 1))
    with pytest.raises(InvalidRequest, match="more than 16 fields"):
        read(many + FILE + b"x" + END)
