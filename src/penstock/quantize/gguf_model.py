"""From a Hugging Face folder to a GGUF file, for Penstock and llama.cpp.

Matrices of layers become blocks of the target's type. The embedding table and the head are 8 bits at least: they lose
most. What has rows that are no multiple of 32 stays float16, vectors float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.errors import InvalidSetting, ModelInvalid
from penstock.kernels.arrays import Array, to_float32
from penstock.model import open_source, registry
from penstock.model.layers.rope import frequencies
from penstock.model.weights.map import Transform, halves_from_pairs
from penstock.model.weights.place import Placement, placements
from penstock.model.weights.source import Source
from penstock.quantize.gguf_blocks import BLOCK, encode
from penstock.quantize.gguf_file import Tensor, write_gguf
from penstock.quantize.gguf_tokenizer import tokenizer_metadata
from penstock.store.disk import whole_output
from penstock.store.files import ModelFiles
from penstock.store.gguf import read_header
from penstock.store.gguf_spec import spec_from_header
from penstock.store.spec import ModelSpec, Rope

# --to -> its name in the file, that of tables, and llama.cpp's number of the whole
GGUF_TARGETS = {
    "q4_0": ("Q4_0", "Q8_0", 2),
    "q4_1": ("Q4_1", "Q8_0", 3),
    "q5_0": ("Q5_0", "Q8_0", 8),
    "q5_1": ("Q5_1", "Q8_0", 9),
    "q8_0": ("Q8_0", "Q8_0", 7),
}
NAMES = {"mistral": "llama"}  # architectures that have another name in GGUF
# What a reader must find as it was. Other fields are for people, or say how weights are stored.
CHECKED = tuple(
    field
    for field in ModelSpec.__struct_fields__
    if field
    not in ("architecture", "name", "dtype", "weights", "quantization", "matrix_types", "table_types", "end_tokens")
)


def write_gguf_model(files: ModelFiles, out: Path, target: str, progress: Callable[[str, int, int], None]) -> int:
    """Write the file `out`; gives its bytes."""
    spec = files.spec
    if files.format != "safetensors" or spec.quantization:
        raise ModelInvalid(
            f"{files.name} is {spec.weights}: only a Hugging Face folder of floats can be quantized", param="model"
        )
    if out.suffix != ".gguf":
        raise InvalidSetting(f"{out}: {target} is a GGUF file, whose name ends in .gguf", param="out")
    metadata = _metadata(files, target)
    tensors = list(_tensors(files, target))
    with whole_output(out) as draft:
        write_gguf(draft, metadata, tensors, lambda done, count: progress("writing", done, count))
        _check(draft, spec)
    return out.stat().st_size


def _metadata(files: ModelFiles, target: str) -> dict[str, Any]:
    spec = files.spec
    architecture = NAMES.get(spec.architecture, spec.architecture)
    values: dict[str, Any] = {
        "context_length": spec.context,
        "embedding_length": spec.hidden_size,
        "block_count": spec.num_layers,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": float(spec.norm_eps),
        "rope.freq_base": float(spec.rope.theta),
        "rope.dimension_count": spec.rope.dim,
        "vocab_size": spec.vocab_size,
    }
    if spec.rope.kind == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(spec.rope.factor)}
    elif spec.rope.kind not in ("default", "llama3"):
        raise ModelInvalid(f"rope: {spec.rope.kind} of {files.name} cannot be written to GGUF yet", param="model")
    if spec.windows:
        values["attention.sliding_window"] = max(spec.windows)
        if 0 in spec.windows:
            values["attention.sliding_window_pattern"] = spec.windows.index(0) + 1
    if spec.logit_softcap:
        values["final_logit_softcapping"] = float(spec.logit_softcap)
    general = {
        "general.architecture": architecture,
        "general.name": files.name,
        "general.file_type": GGUF_TARGETS[target][2],
        "general.quantization_version": 2,
    }
    return general | {f"{architecture}.{key}": value for key, value in values.items()} | tokenizer_metadata(files)


def _tensors(files: ModelFiles, target: str) -> Iterator[Tensor]:
    spec, source = files.spec, open_source(files.weights, files.format)
    layers, tables, _ = GGUF_TARGETS[target]
    parameters = registry.architecture(spec.architecture).weight_map.parameters
    stored = placements(parameters, "hf", spec)
    for here, there in zip(stored, placements(parameters, "gguf", spec), strict=True):
        for place, piece in enumerate(there.pieces):
            shape = piece.stored_shape
            kind = "F32"
            if there.is_matrix:
                kind = layers if there.name.startswith("layers.") else tables
                kind = kind if shape[1] % BLOCK == 0 else "F16"
            read = partial(_read, source, here, place, piece.transform, spec)
            yield Tensor(piece.name, shape, kind, partial(_stored, read, kind))
    if spec.rope.kind == "llama3":
        plain = frequencies(Rope(theta=spec.rope.theta, dim=spec.rope.dim), spec.context)
        factors = (plain / frequencies(spec.rope, spec.context)).astype(np.float32)
        yield Tensor("rope_freqs.weight", factors.shape, "F32", lambda: factors)


def _read(source: Source, here: Placement, place: int, transform: Transform | None, spec: ModelSpec) -> Array:
    """A tensor of the checkpoint as GGUF has it; `transform` is what readers of GGUF do to it."""
    piece = here.pieces[place]
    values = to_float32(source.read(piece.name, piece.stored_shape))
    if piece.transform is not None:
        values = piece.transform(values, spec)
    if transform is None:
        return values
    assert transform is halves_from_pairs, "its inverse is not known"
    halves = values.reshape(-1, 2, spec.head_dim // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _stored(read: Callable[[], Array], kind: str) -> Array:
    values = read()
    return (
        values.astype({"F32": np.float32, "F16": np.float16}[kind]) if kind in ("F32", "F16") else encode(kind, values)
    )


def _check(path: Path, spec: ModelSpec) -> None:
    """GGUF leaves much to be known of the architecture: what is read again must be the same model."""
    found = spec_from_header(read_header(path), path, spec.name)
    for field in CHECKED:
        before, after = getattr(spec, field), getattr(found, field)
        if field == "rope" and spec.rope.kind == "llama3":
            before, after = _frequencies(before), _frequencies(after)
        if isinstance(before, float):
            before, after = float(f"{before:.7g}"), float(f"{after:.7g}")  # 1e-05 may be given as its float32
        if before != after:
            raise ModelInvalid(
                f"{spec.name}: GGUF cannot say that {field} is {msgspec.to_builtins(before)}, readers would take "
                f"{msgspec.to_builtins(after)}",
                param="model",
            )


def _frequencies(rope: Rope) -> list[float]:
    return [float(f"{one:.4g}") for one in frequencies(rope, 1)]
