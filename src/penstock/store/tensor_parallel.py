"""Which degrees of tensor parallelism a model can be split by, and what each rank has of it.

Attention is split by heads and the MLP by its inner dimension. A KV head cannot be split: where there are fewer of them
than ranks, several ranks hold the same one.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.errors import InvalidSetting
from penstock.store.spec import ModelSpec


def split_problem(heads: int, kv_heads: int, intermediate: int, degree: int) -> str | None:
    """Why a model cannot be split over so many ranks; None if it can."""
    if heads % degree:
        return f"{heads} heads cannot be split evenly over {degree} devices"
    if kv_heads % degree and degree % kv_heads:
        return f"{kv_heads} KV heads can be neither split nor repeated evenly over {degree} devices"
    if intermediate % degree:
        return f"the MLP's {intermediate} columns cannot be split evenly over {degree} devices"
    return None


def degrees(spec: ModelSpec) -> list[int]:
    """All that are possible, 1 left out."""
    sizes = (spec.num_heads, spec.num_kv_heads, spec.intermediate_size)
    return [degree for degree in range(2, spec.num_heads + 1) if split_problem(*sizes, degree) is None]


def check_degree(spec: ModelSpec, degree: int) -> None:
    """Raises InvalidSetting, which names the degrees that divide the model."""
    problem = split_problem(spec.num_heads, spec.num_kv_heads, spec.intermediate_size, degree)
    if problem is not None:
        possible = ", ".join(map(str, degrees(spec)))
        raise InvalidSetting(
            f"tensor_parallel: {spec.name} cannot be split over {degree} ranks: {problem}; "
            + (f"possible are {possible}" if possible else "it cannot be split at all"),
            param="tensor_parallel",
        )


def rank_spec(spec: ModelSpec, degree: int) -> ModelSpec:
    """The spec of what one of `degree` ranks computes. Vocabulary and residual stream are whole in it."""
    return replace(
        spec,
        num_heads=spec.num_heads // degree,
        num_kv_heads=max(1, spec.num_kv_heads // degree),
        intermediate_size=spec.intermediate_size // degree,
    )
