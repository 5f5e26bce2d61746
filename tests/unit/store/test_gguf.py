from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf as reference
import numpy as np
import pytest

from helpers.store_samples import LLAMA, TOKENIZER, write_gguf
from penstock.errors import ModelInvalid, ModelNotFound
from penstock.store.gguf import read_header, read_tensors

TENSORS = {
    "one": np.arange(6, dtype=np.float32).reshape(2, 3),
    "two": np.arange(4, dtype=np.float16),
}
SMALL = {"a": 1, "b": 0.5, "c": "text", "d": ["x", "y"], "e": [1, 2], "f": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "x.gguf", tensors=TENSORS)


def test_header_agrees_with_the_reference_reader(path: Path) -> None:
    header, content = read_header(path), path.read_bytes()
    assert header.architecture == "llama"
    for key, value in (LLAMA | TOKENIZER).items():
        assert header.metadata[key] == (pytest.approx(value) if isinstance(value, float) else value)
    assert header.get("block_count") == header.get("llama.block_count") == 2
    for tensor in reference.GGUFReader(path).tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert content[info.offset : info.offset + info.num_bytes] == tensor.data.tobytes()


def test_tensors_alone_are_those_of_the_header(path: Path) -> None:
    assert read_tensors(path) == read_header(path).tensors


def test_quantized_tensors_have_the_sizes_of_the_reference(tmp_path: Path) -> None:
    kinds = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "BF16")
    writer = reference.GGUFWriter(tmp_path / "q.gguf", "llama")
    for name in kinds:
        kind = reference.GGMLQuantizationType[name]
        elements, block_bytes = reference.GGML_QUANT_SIZES[kind]
        row = np.zeros((2, 512 // elements * block_bytes), np.uint8)
        writer.add_tensor(name, row, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(tmp_path / "q.gguf")
    assert {name: info.type.name for name, info in header.tensors.items()} == {name: name for name in kinds}
    assert {info.shape for info in header.tensors.values()} == {(2, 512)}
    last = header.tensors["BF16"]
    assert last.offset + last.num_bytes <= (tmp_path / "q.gguf").stat().st_size


@pytest.mark.parametrize("read", [read_header, read_tensors])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = write_gguf(tmp_path / "x.gguf", metadata=SMALL, tensors=TENSORS)
    content, header = path.read_bytes(), read_header(path)
    end = max(info.offset + info.num_bytes for info in header.tensors.values())
    for length in range(end):
        path.write_bytes(content[:length])
        with pytest.raises(ModelInvalid):
            read(path)


@pytest.mark.parametrize("read", [read_header, read_tensors])
def test_no_flipped_byte_gets_past_as_another_error(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = write_gguf(
        tmp_path / "x.gguf", metadata={"a": 1, "b": 0.5, "c": "text", "d": ["x", "y"], "e": [1, 2], "f": True}
    )
    content, header = path.read_bytes(), read_header(path)
    for position in range(min(info.offset for info in header.tensors.values())):
        for flipped in (0xFF, content[position] ^ 1):
            path.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
            with suppress(ModelInvalid):
                read(path)


def test_what_is_wrong_is_said(tmp_path: Path, path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelInvalid, match="cannot read"):
        read_header(tmp_path)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model at all")
    with pytest.raises(ModelInvalid, match="not a GGUF file"):
        read_header(other)
    other.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(ModelInvalid, match="GGUF version 1 is not supported"):
        read_header(other)
    other.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0))
    with pytest.raises(ModelInvalid, match="claims"):
        read_header(other)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelInvalid, match="truncated: tensor two"):
        read_header(path)


def test_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    kind = reference.GGMLQuantizationType.IQ2_XXS
    writer = reference.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("blk.0.x", np.zeros((1, reference.GGML_QUANT_SIZES[kind][1]), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelInvalid, match=r"blk\.0\.x has ggml type 16, which is not supported.*Q4_K"):
        read_header(tmp_path / "q.gguf")
