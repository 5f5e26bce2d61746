from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock.errors import ModelInvalid, ModelNotFound
from penstock.store.safetensors import read_header, read_index

TENSORS = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.arange(5, dtype=np.float16),
    "c": np.array(7, dtype=np.int64),
    "d": np.zeros((0, 3), dtype=np.float32),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_entries_point_at_the_tensors(path: Path) -> None:
    header, content = read_header(path), path.read_bytes()
    assert set(header) == set(TENSORS)
    for name, tensor in TENSORS.items():
        entry = header[name]
        assert entry.file == path
        assert entry.shape == tensor.shape
        assert content[entry.begin : entry.end] == tensor.tobytes()
    assert [header[name].dtype for name in "abc"] == ["F32", "F16", "I64"]


def test_shards_make_one_index(tmp_path: Path) -> None:
    one, two = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    save_file({"a": TENSORS["a"]}, one)
    save_file({"b": TENSORS["b"]}, two)
    index = read_index([one, two])
    assert {name: entry.file for name, entry in index.items()} == {"a": one, "b": two}
    save_file({"a": TENSORS["a"]}, two)
    with pytest.raises(ModelInvalid, match="tensor a is both in"):
        read_index([one, two])


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelInvalid):
            read_header(path)


def test_no_flipped_byte_of_a_header_gets_past_as_another_error(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for position in range(len(content) - sum(tensor.nbytes for tensor in TENSORS.values())):
        for flipped in (0x00, 0xFF, content[position] ^ 0x01):
            path.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
            with suppress(ModelInvalid):
                read_header(path)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"[]", b"", "header cannot be read"),
        (b'{"a":' + b"[" * 100_000, b"", "header cannot be read"),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"1234", "header cannot be read"),
        ({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}, b"1234", "dtype F4, which is not supported"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234", "has 4 bytes"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}, b"1234", "begins at byte 4"),
        ({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, b"1234", "tensor a"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678", "begins at byte 4"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345", "1 bytes follow"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12", "truncated in tensor a"),
        (
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
            },
            b"123456",
            "tensor b",
        ),
    ],
)
def test_hostile_headers(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    with pytest.raises(ModelInvalid, match=message):
        read_header(raw(tmp_path / "x.safetensors", header, data))


def test_huge_header_length_reads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelInvalid, match="length of a header"):
        read_header(path)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_header(tmp_path / "none.safetensors")
    with pytest.raises(ModelInvalid, match="cannot read"):
        read_header(tmp_path)
