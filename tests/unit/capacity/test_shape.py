"""Parameter counts, against what the makers publish and against the tensors of real files."""

import json
from math import prod
from pathlib import Path

import pytest

from helpers import tiny_models
from penstock.capacity.formats import FORMATS, PACKED_BITS
from penstock.capacity.memory import weights_bytes
from penstock.capacity.shape import PRESETS, shape_of
from penstock.kernels.cpu.packed import segment_bytes
from penstock.model.weights.pack import kind_of
from penstock.store.files import ModelFiles
from penstock.store.gguf import TENSOR_TYPES, read_header
from penstock.store.hf_folder import read
from penstock.store.safetensors import read_index

# As the models' pages on their hub count them.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-2-7b": 6_738_415_616,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-small-24b": 23_572_403_200,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma-3-1b": 999_885_952,
    "phi-3-mini": 3_821_079_552,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    assert PRESETS[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_spec_has_as_many_parameters_as_its_file(family: str, tmp_path: Path) -> None:
    files = read(tiny_models.make(family, tmp_path), family)
    tensors = read_index(files.weights)
    assert shape_of(files.spec).parameters == sum(prod(entry.shape) for entry in tensors.values())


@pytest.mark.weights
def test_a_gguf_has_as_many_parameters_as_its_preset(smollm2: ModelFiles) -> None:
    tensors = read_header(smollm2.weights[0]).tensors
    shape = shape_of(smollm2.spec)
    assert shape.parameters == sum(prod(one.shape) for one in tensors.values()) == PRESETS["smollm2-135m"].parameters


@pytest.mark.weights
def test_a_gguf_takes_what_its_tensors_take(smollm2: ModelFiles) -> None:
    """Its table is in Q8_0, whatever its name says. Neither that nor Q4_1 grows when it is packed."""
    shape = shape_of(smollm2.spec)
    stored = sum(one.num_bytes for one in read_header(smollm2.weights[0]).tensors.values())
    assert weights_bytes(shape, shape.format("q4_1", "cpu")) == stored
    assert shape.format("q8_0", "cpu") is FORMATS["q8_0"]


@pytest.mark.parametrize("name", [kind.name for kind in TENSOR_TYPES.values()])
def test_packed_formats_are_those_of_the_kernels(name: str) -> None:
    assert PACKED_BITS[name] == segment_bytes(kind_of(name, None), 256, 512) * 8 / (256 * 512)


def test_windows_of_a_spec(tmp_path: Path) -> None:
    spec = read(tiny_models.make("gemma3", tmp_path), "gemma3").spec
    shape = shape_of(spec)
    assert (shape.window, shape.windowed_layers, shape.layers) == (tiny_models.WINDOW, 3, 4)
    assert shape.seen(10) == 4 * 10
    assert shape.seen(100) == 100 + 3 * tiny_models.WINDOW


def test_a_checkpoint_of_which_only_the_kv_cache_is_quantized(tmp_path: Path) -> None:
    """Its weights are floats of the config's type."""
    folder = tiny_models.make("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float"}
    config["quantization_config"] = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    (folder / "config.json").write_text(json.dumps(config))
    assert shape_of(read(folder, "tiny").spec).stored == "float32"
