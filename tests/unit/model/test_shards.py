"""What a rank reads and holds: its share of the weights, never the whole, in every format of checkpoints."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from helpers import quantized_checkpoints, tiny_gguf, tiny_models
from penstock.kernels.arrays import Array
from penstock.model import DummySource, Source, open_source, registry
from penstock.model.load_dense import load_dense, weight_bytes
from penstock.model.weights import gguf, quantized_layers, safetensors
from penstock.model.weights.gguf import GgufSource
from penstock.model.weights.place import WHOLE, Shard, placements
from penstock.model.weights.source import Region, Shape, Span
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec

CPU = torch.device("cpu")
FORMATS = ["float32", "gguf", "awq", "gptq", "packed", "int8", "fp8", "nvfp4"]


class CountingSource:
    """Counts the numbers that are read."""

    def __init__(self, source: Source) -> None:
        self._source, self.format, self.shapes = source, source.format, source.shapes
        self.stored_type, self.read_blocks, self.release = source.stored_type, source.read_blocks, source.release
        self.codes = source.codes
        self.numbers = 0

    def read(self, name: str, shape: Shape, region: Region | None = None) -> Array:
        values = self._source.read(name, shape, region)
        self.numbers += values.size
        return values


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The columns of each of four ranks are whole groups of 32."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 128, "num_key_value_heads": 4}
    return tiny_models.make("qwen2", tmp_path_factory.mktemp("model"), **sizes)


@pytest.fixture(scope="module", params=FORMATS)
def files(request: pytest.FixtureRequest, floats: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    tmp_path = tmp_path_factory.mktemp(request.param)
    if request.param == "float32":
        return read(floats, "tiny")
    if request.param == "gguf":
        return resolve(str(tiny_gguf.convert(floats, tmp_path / "tiny.gguf", GGMLQuantizationType.Q8_0)))
    return read(quantized_checkpoints.write(floats, tmp_path / "model", request.param)[0], "tiny")


def parameters(spec: ModelSpec, shard: Shard) -> int:
    weight_map = registry.architecture(spec.architecture).weight_map
    return sum(prod(one.shape) for one in placements(weight_map.parameters, "hf", spec, shard))


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_reads_and_allocates_its_share(files: ModelFiles, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at the source, at the decoders of quantized numbers, and where tensors are allocated."""
    spec, decoded, allocated = files.spec, [0], [0]
    _count_decoded(decoded, monkeypatch)

    def allocate(shape: Shape, dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        allocated[0] += tensor.nbytes
        return tensor

    source = CountingSource(open_source(files.weights, files.format, spec.quantization))
    zero_points = 2 * decoded[0]  # read at once, and again with the codes
    shard = Shard(1, world)
    model = load_dense(spec, source, dtype=torch.bfloat16, device=CPU, context=64, allocate=allocate, shard=shard)
    own, whole = parameters(spec, shard), parameters(spec, WHOLE)
    assert source.numbers == own
    assert allocated[0] == weight_bytes(spec, dtype=torch.bfloat16, device=CPU, shard=shard) == model.num_bytes
    assert own < whole / world * 1.02  # norms are whole
    assert decoded[0] < own * 1.1 + zero_points


def _count_decoded(decoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def counting(module: object, name: str) -> None:
        original = getattr(module, name)

        def decode(*arguments: Array) -> Array:
            values = original(*arguments)
            decoded[0] += values.size
            return values  # type: ignore[no-any-return]

        monkeypatch.setattr(module, name, decode)

    for name in ("unpack_awq", "unpack_gptq", "unpack", "fp8_to_floats", "nvfp4_to_floats"):
        counting(quantized_layers, name)
    counting(gguf, "dequantize")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_regions_of_a_gguf_file(kind: str, floats: Path, tmp_path: Path) -> None:
    source = GgufSource(tiny_gguf.convert(floats, tmp_path / "tiny.gguf", GGMLQuantizationType[kind]))
    name, odd = "blk.0.ffn_gate.weight", Region((Span(5, 21), Span(40, 57)), Span(3, 61))
    whole = source.read(name, source.shapes[name])
    np.testing.assert_array_equal(source.read(name, source.shapes[name], odd), odd.of(whole))
    bias, some = "blk.0.attn_q.bias", Region((Span(3, 9),), None)
    np.testing.assert_array_equal(source.read(bias, (128,), some), source.read(bias, (128,))[3:9])


def test_regions_of_random_weights() -> None:
    source, odd = DummySource(), Region((Span(5, 21), Span(40, 57)), Span(3, 61))
    np.testing.assert_array_equal(source.read("a", (80, 90), odd), odd.of(source.read("a", (80, 90))))
    assert source.read("a", (80,), Region((Span(0, 7),), None)).shape == (7,)


def test_floats_are_not_copied_to_be_sliced(floats: Path) -> None:
    source = safetensors.SafetensorsSource(read(floats, "tiny").weights)
    region = Region((Span(0, 8),), Span(0, 32))
    values = source.read("model.layers.0.mlp.down_proj.weight", (128, 128), region)
    assert not values.flags.owndata
    assert values.shape == (8, 32)
