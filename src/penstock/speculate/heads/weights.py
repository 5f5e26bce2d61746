"""The parameters of draft heads, as readers give them: float32 arrays of numpy, matrices [out, in]. What a head shares
with the target is None."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.kernels.arrays import Array


@dataclass(frozen=True, slots=True)
class Projection:
    weight: Array  # [out, in]
    bias: Array | None = None  # [out]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: Array | None  # EAGLE-1 has none
    q: Projection
    k: Projection
    v: Projection
    output: Projection
    mlp_norm: Array
    gate: Projection
    up: Projection
    down: Projection
    feature_norm: Array | None = None  # EAGLE-3: of the feature, while `input_norm` is of the embedding


@dataclass(frozen=True, slots=True)
class ChainHeadWeights:
    fuse: Projection
    layers: tuple[LayerWeights, ...]
    embedding_norm: Array | None = None  # MTP
    feature_norm: Array | None = None  # MTP
    output_norm: Array | None = None  # EAGLE-3, MTP
    embedding: Array | None = None  # [vocab, hidden]
    head: Array | None = None  # [draft vocab, hidden]
    token_ids: Array | None = None  # [draft vocab] int64: the target's ids of the tokens it drafts; None: all


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    blocks: tuple[tuple[Projection, ...], ...]  # [heads][blocks]
    heads: tuple[Array | None, ...]  # [heads]: [draft vocab, hidden]
    token_ids: Array | None = None
