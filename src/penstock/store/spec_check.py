"""What holds between the numbers of a spec, wherever they were read from, and between it and what is asked of it."""

from __future__ import annotations

from penstock.errors import InvalidSetting, ModelInvalid
from penstock.store.spec import ModelSpec, Rope

MAX_LAYERS = 10_000


def checked(spec: ModelSpec, where: str) -> ModelSpec:
    """The spec itself. `where` is the file it comes from, for the message."""
    if spec.num_heads % spec.num_kv_heads:
        raise ModelInvalid(
            f"{where}: {spec.num_heads} attention heads cannot share {spec.num_kv_heads} key-value heads evenly",
            param="model",
        )
    for rope in (spec.rope, spec.local_rope):
        if rope is not None:
            _check_rope(rope, spec.head_dim, where)
    return spec


def _check_rope(rope: Rope, head_dim: int, where: str) -> None:
    if rope.dim % 2 or not 0 < rope.dim <= head_dim:
        raise ModelInvalid(
            f"{where}: rotary dimensions must be an even number up to the head's {head_dim}, got {rope.dim}",
            param="model",
        )
    for factors in (rope.short_factors, rope.long_factors):
        if len(factors) not in (0, rope.dim // 2):
            raise ModelInvalid(
                f"{where}: {rope.dim} rotary dimensions need {rope.dim // 2} factors, got {len(factors)}", param="model"
            )


def useful_windows(windows: tuple[int, ...], context: int) -> tuple[int, ...]:
    """Windows as a spec has them: one that no sequence outgrows is no window, and none at all is an empty tuple.

    Not for models whose windowed layers differ in more than the window (Gemma 3's have their own rope).
    """
    windows = tuple(0 if window >= context else window for window in windows)
    return windows if any(windows) else ()


def stretched_context(context: int, rope: Rope) -> int:
    """Models shipped with YaRN to be switched on by hand still give the context they had before."""
    return max(context, int(rope.original_context * rope.factor)) if rope.kind == "yarn" else context


def chosen_context(spec: ModelSpec, asked: int | None) -> int:
    """The context length: `asked`, or the model's own if that is None."""
    if asked is not None and asked > spec.context:
        raise InvalidSetting(
            f"context: {spec.name} was made for {spec.context} tokens, {asked} were asked for", param="context"
        )
    return asked or spec.context
