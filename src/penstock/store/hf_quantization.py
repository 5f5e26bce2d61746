"""The `quantization_config` of a Hugging Face config: how a checkpoint stores the weights of its linear layers.

Which layers are quantized, their groups and whether they have zero points can be seen from the tensors themselves
(`model.weights.quantized_hf`). What cannot, and what cannot be read, is decided here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.store.values import Values
from penstock.system import typed

Method = Literal["awq", "gptq", "compressed-tensors", "fp8", "modelopt"]
Stored = Literal["int4", "int8", "fp8", "nvfp4", "mixed", "floats"]
Inputs = Literal["int8", "fp8"]

CONFIG_KEYS = ("quantization_config", "compression_config")  # the second of compressed-tensors before 0.7
AWQ_VERSIONS = ("gemm",)
GPTQ_FORMATS = {"gptq": 1, "gptq_v2": 0}  # -> what the format subtracts from zero points before it stores them
COMPRESSED_FORMATS = {
    "pack-quantized": "",  # 4 or 8 bits
    "int-quantized": "int8",
    "float-quantized": "fp8",
    "naive-quantized": "",
    "nvfp4-pack-quantized": "nvfp4",
    "mixed-precision": "mixed",
}
MODELOPT_BLOCK = (128, 128)  # its config does not say it
MODELOPT_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
}
# Of these, those whose products round inputs to FP8
MODELOPT_FP8_INPUTS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")


class Quantization(msgspec.Struct, frozen=True):
    """Of a checkpoint as a whole."""

    method: Method
    stored: Stored  # most linear layers
    zero_offset: int = 0  # GPTQ: add it to the zero points that are stored
    block: tuple[int, int] | None = (
        None  # FP8: the rows and columns that share a scale, where it is neither a row nor all
    )
    has_zeros: bool = False  # compressed-tensors: all layers have zero points
    has_order: bool = False  # all layers say in `g_idx` which group an input is in
    inputs: Inputs | None = None  # what the checkpoint was made for that inputs of products are rounded to
    kv_scheme: str = ""  # the 8-bit KV cache that the checkpoint has static scales for, as "fp8"; empty: none

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.method} {self.stored}"


def quantization_from_config(config: Values) -> Quantization | None:
    """None: weights are floats. Raises `ModelInvalid` for what cannot be read."""
    key = next((key for key in CONFIG_KEYS if config.raw(key)), None)
    if key is None:
        return None
    values = config.part(key)
    method = values.text("quant_method", "compressed-tensors" if values.raw("config_groups") else None)
    readers = {
        "awq": _awq,
        "gptq": _gptq,
        "compressed-tensors": _compressed,
        "fp8": _fp8,
        "modelopt": _modelopt,
    }
    if method not in readers:
        raise values.invalid("quant_method", f"{method!r} is not supported ({', '.join(readers)} and GGUF files are)")
    return msgspec.structs.replace(readers[method](values), kv_scheme=_kv_scheme(values))


def _kv_scheme(values: Values) -> str:
    """In words, of `kv_cache_scheme` (compressed-tensors; of AutoFP8 one word) or `kv_cache_quant_algo` (ModelOpt)."""
    algorithm, found = values.raw("kv_cache_quant_algo"), values.raw("kv_cache_scheme")
    if isinstance(algorithm, str):
        return algorithm.lower()
    if isinstance(found, str):
        return {"static": "fp8", "dynamic": ""}.get(found, found.lower())
    if not found:
        return ""
    scheme = values.part("kv_cache_scheme")
    return f"{'fp' if scheme.text('type', 'float') == 'float' else 'int'}{scheme.integer('num_bits', 8)}"


def _awq(values: Values) -> Quantization:
    version = values.text("version", "gemm").lower()
    if version not in AWQ_VERSIONS:
        raise values.invalid("version", f"{version!r} is not supported ({', '.join(AWQ_VERSIONS)} is)")
    _bits(values, "bits" if values.raw("bits") is not None else "w_bit", (4,))
    return Quantization("awq", "int4")


def _gptq(values: Values) -> Quantization:
    form = values.text("checkpoint_format", "gptq")
    if form not in GPTQ_FORMATS:
        raise values.invalid("checkpoint_format", f"{form!r} is not supported ({', '.join(GPTQ_FORMATS)} are)")
    bits = _bits(values, "bits", (4, 8))
    stored: Stored = "mixed" if values.part("dynamic").values else "int4" if bits == 4 else "int8"
    return Quantization("gptq", stored, GPTQ_FORMATS[form], has_order=values.flag("desc_act", False))


def _compressed(values: Values) -> Quantization:
    groups = [_group(values, name) for name in values.part("config_groups").values]
    sparsity = values.part("sparsity_config")
    if sparsity.text("format", "dense") != "dense":
        raise sparsity.invalid("format", "is not supported: only dense weights are")
    form = values.text("format", "pack-quantized")
    if form not in COMPRESSED_FORMATS:
        raise values.invalid("format", f"{form!r} is not supported ({', '.join(COMPRESSED_FORMATS)} are)")
    stored = COMPRESSED_FORMATS[form] or ("fp8" if _is_float(groups) else _integer_type(groups))
    if not groups and values.raw("kv_cache_scheme"):
        stored = "floats"  # only the KV cache is quantized
    blocks = {_block(group, "block_structure") for group in groups if group.raw("strategy") == "block"}
    if len(blocks) > 1:
        raise values.invalid("config_groups", f"have blocks of several sizes: {', '.join(map(str, sorted(blocks)))}")
    return Quantization(
        "compressed-tensors",
        typed.convert(stored, Stored),
        block=blocks.pop() if blocks else None,
        has_zeros=bool(groups) and all(group.raw("symmetric") is False for group in groups),
        has_order=bool(groups) and all(group.raw("actorder") == "group" for group in groups),
        inputs=_inputs(values),
    )


def _inputs(values: Values) -> Inputs | None:
    """Of all groups; None: they stay as they are, or have types that products here do not have."""
    found = set()
    for name in values.part("config_groups").values:
        group = values.part("config_groups").part(name)
        if not group.raw("input_activations"):
            return None
        rounded = group.part("input_activations")
        found.add((rounded.raw("type"), rounded.raw("num_bits")))
    known: dict[object, Inputs] = {("int", 8): "int8", ("float", 8): "fp8"}
    return known.get(found.pop()) if len(found) == 1 else None


def _group(values: Values, name: str) -> Values:
    weights = values.part("config_groups").part(name).part("weights")
    if weights.raw("type") not in (None, "int", "float"):
        raise weights.invalid("type", f"{weights.raw('type')!r} is not supported (int and float are)")
    _bits(weights, "num_bits", (4, 8))
    return weights


def _is_float(groups: list[Values]) -> bool:
    return any(group.raw("type") == "float" for group in groups)


def _integer_type(groups: list[Values]) -> str:
    bits = {group.raw("num_bits") for group in groups}
    return f"int{bits.pop()}" if len(bits) == 1 else "mixed"


def _fp8(values: Values) -> Quantization:
    form = values.text("fmt", "e4m3")
    if form != "e4m3":
        raise values.invalid("fmt", f"{form!r} is not supported (e4m3 is)")
    has_blocks = values.raw("weight_block_size") is not None
    return Quantization("fp8", "fp8", block=_block(values, "weight_block_size") if has_blocks else None, inputs="fp8")


def _modelopt(values: Values) -> Quantization:
    algorithm = values.text("quant_algo").upper()
    if algorithm not in MODELOPT_ALGORITHMS:
        known = ", ".join(MODELOPT_ALGORITHMS)
        raise values.invalid("quant_algo", f"{algorithm!r} is not supported ({known} are)")
    stored = typed.convert(MODELOPT_ALGORITHMS[algorithm], Stored)
    block = MODELOPT_BLOCK if algorithm == "FP8_PB_WO" else None
    return Quantization("modelopt", stored, block=block, inputs="fp8" if algorithm in MODELOPT_FP8_INPUTS else None)


def _block(values: Values, key: str) -> tuple[int, int]:
    sizes = values.items(key)
    if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise values.invalid(key, f"must be two sizes, got {sizes!r}")
    return sizes[0], sizes[1]


def _bits(values: Values, key: str, known: tuple[int, ...]) -> int:
    bits = values.integer(key)
    if bits not in known:
        raise values.invalid(key, f"must be {' or '.join(map(str, known))}, got {bits}")
    return bits
