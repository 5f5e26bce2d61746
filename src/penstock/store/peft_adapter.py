"""Adapters in PEFT's format: adapter_config.json and adapter_model.safetensors in one folder.

Every field of the config that changes what the adapter computes is honoured or refused, and every tensor is used or
refused. Pickled tensors (adapter_model.bin) are never opened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.errors import ModelInvalid, ModelNotFound
from penstock.store.adapter_spec import (
    DTYPE_BYTES,
    MAX_CONFIG_BYTES,
    MAX_HEADER_BYTES,
    MODEL_MODULES,
    LowRank,
    SavedTable,
    StoredTensor,
)
from penstock.store.safetensors import TensorEntry, read_header
from penstock.store.values import Values
from penstock.system import typed

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "pytorch_model.bin")

MODULES = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "qkv_proj": "qkv",
    "gate_up_proj": "gate_up",
    "lm_head": "head",
    "embed_tokens": "embed",
}
PARENTS = ("self_attn.", "mlp.")  # of the modules of a layer; experts have others
# Fields that change what is computed -> what to say. Each may be absent, or have its neutral value: null, false, empty.
UNSUPPORTED = {
    "use_dora": "DoRA is not supported: merge the adapter with peft, or train it without",
    "modules_to_save": "modules that are trained whole are not supported: an adapter is low-rank matrices only",
    "lora_bias": "a bias beside B is not supported",
    "fan_in_fan_out": "transposed base weights are not supported",
    "layer_replication": "repeated layers are not supported",
    "target_parameters": "parameters of experts are not supported",
    "trainable_token_indices": "trained rows of the embedding are not supported",
    "alora_invocation_tokens": "activated LoRA is not supported",
    "use_qalora": "QALoRA is not supported",
    "use_bdlora": "block-diagonal LoRA is not supported",
    "arrow_config": "Arrow routing is not supported",
    "kasa_config": "KaSA is not supported",
    "monteclora_config": "MonteCLoRA is not supported",
}
# Ways to begin the training that leave the base as it is. Others (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA) change it.
NEUTRAL_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")

_PREFIX = re.compile(r"(?:base_model\.model\.)?(?:model\.)?(?:language_model\.)?(?:model\.)?")
_TENSOR = re.compile(
    r"(?P<module>(?:layers\.(?P<layer>\d{1,5})\.)?(?P<parent>(?:[A-Za-z0-9_]+\.)*)(?P<kind>[A-Za-z0-9_]+))"
    r"\.lora_(?:embedding_)?(?P<side>[AB])(?:\.[A-Za-z0-9_-]+)??(?:\.weight)?"
)
_SAVED_TABLE = re.compile(r"(?P<kind>embed_tokens|lm_head)(?:\.base_layer)?\.weight")


class PeftParts(NamedTuple):
    config: bytes
    alpha: float
    rslora: bool
    base: str
    low_ranks: tuple[LowRank, ...]
    saved_tables: tuple[SavedTable, ...]


def read_peft(folder: Path) -> PeftParts:
    raw, config = _read_config(folder / CONFIG)
    _refuse_unsupported(config)
    weights = folder / WEIGHTS
    if not weights.exists():
        found = next((name for name in PICKLES if (folder / name).exists()), None)
        if found:
            raise ModelInvalid(
                f"{folder} has its tensors in {found}, a pickle, which can run code when it is opened: save the "
                f"adapter as {WEIGHTS} (save_pretrained does, with safe_serialization)",
                param="adapter",
            )
        raise ModelNotFound(f"{folder} has no {WEIGHTS}", param="adapter")
    entries = read_header(weights, max_header_bytes=MAX_HEADER_BYTES)
    alpha, rslora = config.number("lora_alpha"), config.flag("use_rslora", False)
    low_ranks, tables = _low_ranks(entries, config, _Scaling(config, alpha, rslora), weights)
    if config.raw("ensure_weight_tying") and any(one.layer is None for one in low_ranks):
        raise config.invalid("ensure_weight_tying", "is set: head and embedding have adapters of their own here")
    return PeftParts(raw, alpha, rslora, str(config.raw("base_model_name_or_path") or ""), low_ranks, tables)


def _read_config(path: Path) -> tuple[bytes, Values]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
        if len(raw) > MAX_CONFIG_BYTES:
            raise ModelInvalid(f"{path} has more than {MAX_CONFIG_BYTES} bytes", param="adapter")
        return raw, Values(typed.decode_json(raw, dict[str, Any]), str(path))
    except FileNotFoundError:
        raise ModelNotFound(f"{path.parent} is no adapter: it has no {CONFIG}", param="adapter") from None
    except OSError as error:
        raise ModelInvalid(f"cannot read {path}: {error.strerror}", param="adapter") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelInvalid(f"{path} is not valid JSON: {error}", param="adapter") from None


def _refuse_unsupported(config: Values) -> None:
    if (kind := config.text("peft_type", "LORA")) != "LORA":
        raise config.invalid("peft_type", f"is {kind}: only LORA adapters are supported")
    for field, reason in UNSUPPORTED.items():
        if config.raw(field) not in (None, False, [], {}, ""):
            raise config.invalid(field, f"is set: {reason}")
    if (bias := config.text("bias", "none")) != "none":
        raise config.invalid("bias", f"is {bias!r}: trained biases are not supported")
    start = config.raw("init_lora_weights")
    if start not in NEUTRAL_STARTS:
        raise config.invalid(
            "init_lora_weights",
            f"is {start!r}, which changes the weights of the base: convert the adapter with peft when it is saved "
            "(path_initial_model_for_weight_conversion)",
        )


class _Scaling:
    """The rank that the config gives a module, and its scale."""

    def __init__(self, config: Values, alpha: float, rslora: bool) -> None:
        self._config, self._alpha, self._rslora = config, alpha, rslora
        self._rank = config.integer("r", most=1 << 20)
        self._ranks = _Patterns(config.part("rank_pattern"))
        self._alphas = _Patterns(config.part("alpha_pattern"))

    def rank(self, module: str) -> int:
        key = self._ranks.key(module)
        return self._rank if key is None else self._config.part("rank_pattern").integer(key, most=1 << 20)

    def scale(self, module: str, rank: int) -> float:
        key = self._alphas.key(module)
        alpha = self._alpha if key is None else self._config.part("alpha_pattern").number(key)
        return alpha / (math.sqrt(rank) if self._rslora else rank)


class _Patterns:
    """The expressions of rank_pattern and alpha_pattern: the first that matches the end of a module's name counts, from
    a dot on. RE2 matches them in linear time, whoever wrote them."""

    def __init__(self, patterns: Values) -> None:
        self._compiled: list[tuple[str, Callable[[str], object]]] = []
        if not patterns.values:
            return
        import re2  # only few adapters have patterns

        options = re2.Options()
        options.log_errors, options.max_mem = False, 1 << 20
        for key in patterns.values:
            try:
                self._compiled.append((key, re2.compile(rf"(?:.*\.)?(?:{key})", options).fullmatch))
            except re2.error as error:
                raise patterns.invalid(key, f"is not an expression that RE2 can match: {error}") from None

    def key(self, module: str) -> str | None:
        return next((key for key, matches in self._compiled if matches(module)), None)


def _low_ranks(
    entries: Mapping[str, TensorEntry], config: Values, scaling: _Scaling, path: Path
) -> tuple[tuple[LowRank, ...], tuple[SavedTable, ...]]:
    sides: dict[str, dict[str, StoredTensor]] = {}
    places: dict[str, tuple[int | None, str]] = {}
    tables: list[SavedTable] = []
    for name, entry in entries.items():
        short = name[_PREFIX.match(name).end() :]  # type: ignore[union-attr]  # it matches nothing, too
        if saved := _SAVED_TABLE.fullmatch(short):
            tables.append(SavedTable(name, MODULES[saved["kind"]], *msgspec.structs.astuple(_stored(name, entry))))
            continue
        found = _TENSOR.fullmatch(short)
        if found is None:
            raise ModelInvalid(f"{path}: tensor {name[:200]} is not part of a LoRA of linear layers", param="adapter")
        kind = MODULES.get(found["kind"])
        parents = ("",) if found["layer"] is None else PARENTS
        if kind is None or found["parent"] not in parents or (kind in MODEL_MODULES) != (found["layer"] is None):
            raise ModelInvalid(
                f"{path}: module {found['module'][:200]} cannot have an adapter here; {', '.join(MODULES)} can",
                param="adapter",
            )
        both = sides.setdefault(found["module"], {})
        if found["side"] in both:
            raise ModelInvalid(f"{path} has {found['module'][:200]} twice", param="adapter")
        both[found["side"]] = _stored(name, entry)
        places[found["module"]] = (int(found["layer"]) if found["layer"] else None, kind)
    made = []
    for module, both in sides.items():
        if len(both) < 2:
            missing = "B" if "A" in both else "A"
            raise ModelInvalid(f"{path}: module {module[:200]} has no lora_{missing}", param="adapter")
        made.append(_low_rank(module, places[module], both, scaling, path))
    return tuple(made), tuple(tables)


def _low_rank(
    module: str, place: tuple[int | None, str], both: dict[str, StoredTensor], scaling: _Scaling, path: Path
) -> LowRank:
    a, b = both["A"], both["B"]
    rank, layer = scaling.rank(_full_name(module)), place[0]
    if a.shape[0] != rank or b.shape[1] != rank:
        raise ModelInvalid(
            f"{path}: module {module} has A of shape {list(a.shape)} and B of shape {list(b.shape)}, but rank {rank} "
            "in the config",
            param="adapter",
        )
    scale = scaling.scale(_full_name(module), rank)
    return LowRank(layer=layer, module=place[1], rank=rank, scale=scale, a=a, b=b)


def _full_name(module: str) -> str:
    """As PEFT has it when it looks a module up in a pattern."""
    return module if module == "lm_head" else f"model.{module}"


def _stored(name: str, entry: TensorEntry) -> StoredTensor:
    if len(entry.shape) != 2:
        raise ModelInvalid(
            f"{entry.file}: tensor {name[:200]} has shape {list(entry.shape)}: only linear layers and embeddings can "
            "have an adapter, convolutions cannot",
            param="adapter",
        )
    if entry.dtype not in DTYPE_BYTES:
        raise ModelInvalid(
            f"{entry.file}: tensor {name[:200]} has dtype {entry.dtype}; adapters have {', '.join(DTYPE_BYTES)}",
            param="adapter",
        )
    return StoredTensor((entry.shape[0], entry.shape[1]), entry.dtype, entry.begin, entry.end)
