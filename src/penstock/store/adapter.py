"""LoRA adapters on disk: what a folder of PEFT or a GGUF file has, and whether it fits a model.

`open_adapter` reads the description, and the content once for its hash; `model.weights.adapter` reads the numbers.
Files come from anywhere: everything read is bounded and checked before it is used.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from penstock.errors import ModelInvalid, ModelNotFound, PenstockError, WeightsMismatch
from penstock.store.adapter_spec import (
    LAYER_MODULES,
    MAX_RANK,
    MODEL_MODULES,
    AdapterFiles,
    AdapterSpec,
    LowRank,
    SavedTable,
    StoredTensor,
)
from penstock.store.files import ModelFiles
from penstock.store.gguf_adapter import read_gguf
from penstock.store.peft_adapter import WEIGHTS, read_peft
from penstock.store.saved_tables import check_saved_tables
from penstock.store.spec import ModelSpec

__all__ = [
    "MAX_RANK",
    "AdapterFiles",
    "AdapterSpec",
    "LowRank",
    "StoredTensor",
    "check_adapter",
    "check_files",
    "open_adapter",
]

COPY_BYTES = 1 << 20
FUSED = {"phi3"}  # architectures with q, k and v in one module, and gate and up


def open_adapter(path: Path) -> AdapterFiles:
    """A folder in PEFT's format, or a .gguf file. Raises ModelNotFound or ModelInvalid with `param` "adapter"."""
    try:
        if path.is_dir():
            peft = read_peft(path)
            weights, version = path / WEIGHTS, _content_hash(path / WEIGHTS, peft.config)
            spec = _spec(
                path.name,
                "peft",
                version,
                peft.low_ranks,
                alpha=peft.alpha,
                rslora=peft.rslora,
                base=peft.base,
                saved_tables=peft.saved_tables,
            )
        elif path.suffix == ".gguf" or not path.exists():
            gguf = read_gguf(path)
            weights, version = path, _content_hash(path)
            spec = _spec(
                path.stem,
                "gguf",
                version,
                gguf.low_ranks,
                alpha=gguf.alpha,
                base=gguf.base,
                architecture=gguf.architecture,
            )
        else:
            raise ModelInvalid(f"{path} is neither a folder in PEFT's format nor a .gguf file", param="adapter")
    except PenstockError as error:
        raise type(error)(error.message, param="adapter") from None
    except ValueError as error:  # a NUL in a path
        raise ModelNotFound(f"no adapter at {str(path)!r}: {error}", param="adapter") from None
    return AdapterFiles(path, weights, spec)


def check_files(adapter: AdapterFiles, base: ModelFiles) -> None:
    """Raises WeightsMismatch, with what is wrong, unless the adapter fits the model. Reads the tables that it has
    beside its matrices, and the base's."""
    check_adapter(adapter.spec, base.spec)
    check_saved_tables(adapter, base)


def check_adapter(adapter: AdapterSpec, model: ModelSpec) -> None:
    """`check_files` of what the headers tell."""
    if adapter.rank > MAX_RANK:
        raise _mismatch(adapter, f"it has rank {adapter.rank}; {MAX_RANK} is the largest that is supported")
    known = _sizes(model)
    for one in adapter.low_ranks:
        if one.layer is not None and one.layer >= model.num_layers:
            raise _mismatch(
                adapter, f"it changes layer {one.layer}, and {model.name} has {model.num_layers}; {_made_for(adapter)}"
            )
        sizes = known.get(one.module)
        if sizes is None:
            raise _mismatch(adapter, f"{model.name} ({model.architecture}) has no module {one.module} of its own")
        if (one.inputs, one.outputs) != sizes:
            raise _mismatch(
                adapter,
                f"{one.label} takes {one.inputs} inputs to {one.outputs} outputs in the adapter, and {sizes[0]} to "
                f"{sizes[1]} in {model.name}; {_made_for(adapter)}",
            )
    for table in adapter.saved_tables:
        if table.shape != (model.vocab_size, model.hidden_size):
            raise _mismatch(
                adapter,
                f"it has a table ({table.module}) of shape {list(table.shape)}, and that of {model.name} has "
                f"{[model.vocab_size, model.hidden_size]}: vocabularies of another size are not supported",
            )


def _sizes(model: ModelSpec) -> dict[str, tuple[int, int]]:
    """Module -> inputs, outputs."""
    hidden, ffn = model.hidden_size, model.intermediate_size
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    sizes = {
        "o": (q, hidden),
        "down": (ffn, hidden),
        "head": (hidden, model.vocab_size),
        "embed": (model.vocab_size, hidden),
    }
    if model.architecture in FUSED:
        return sizes | {"qkv": (hidden, q + 2 * kv), "gate_up": (hidden, 2 * ffn)}
    return sizes | {
        "q": (hidden, q),
        "k": (hidden, kv),
        "v": (hidden, kv),
        "gate": (hidden, ffn),
        "up": (hidden, ffn),
    }


def _spec(
    name: str,
    form: str,
    version: str,
    low_ranks: tuple[LowRank, ...],
    *,
    alpha: float,
    rslora: bool = False,
    base: str = "",
    architecture: str = "",
    saved_tables: tuple[SavedTable, ...] = (),
) -> AdapterSpec:
    if not low_ranks:
        raise ModelInvalid(f"adapter {name} has no tensors", param="adapter")
    order = (*LAYER_MODULES, *MODEL_MODULES)
    changed = {one.module for one in low_ranks}
    return AdapterSpec(
        name=name,
        format="peft" if form == "peft" else "gguf",
        version=version,
        rank=max(one.rank for one in low_ranks),
        alpha=alpha,
        rslora=rslora,
        base=base[:200],
        architecture=architecture,
        modules=tuple(module for module in order if module in changed),
        num_bytes=sum(tensor.end - tensor.begin for one in low_ranks for tensor in (one.a, one.b)),
        low_ranks=tuple(
            sorted(low_ranks, key=lambda one: (one.layer is None, one.layer or 0, order.index(one.module)))
        ),
        saved_tables=saved_tables,
    )


def _content_hash(path: Path, config: bytes = b"") -> str:
    """Of the config and the file: an adapter that was trained on has another one, so nothing cached under the old
    version is used for it."""
    digest = hashlib.sha256(len(config).to_bytes(8, "little") + config)
    try:
        with path.open("rb") as file:
            while block := file.read(COPY_BYTES):
                digest.update(block)
    except OSError as error:
        raise ModelInvalid(f"cannot read {path}: {error.strerror}", param="adapter") from None
    return digest.hexdigest()[:16]


def _made_for(adapter: AdapterSpec) -> str:
    return f"the adapter is made for {adapter.base}" if adapter.base else "the adapter is made for another model"


def _mismatch(adapter: AdapterSpec, what: str) -> WeightsMismatch:
    return WeightsMismatch(f"adapter {adapter.name} does not fit: {what}", param="adapter")
