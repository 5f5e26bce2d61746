"""What a model computes inside for one short prompt: the residual stream after each layer, the attention of one layer,
and what the head would say at each layer (logit lens).

A tracer recomputes the prompt with the served weights and memory of its own, in a thread of its own: steps go on beside
it, and no slot, KV block or draw of theirs is touched. `native_trace` runs the native program piece by piece,
`torch_trace` torch operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.kernels.arrays import Array

MAX_TOKENS = 64
SHOWN_VALUES = 48  # of a residual vector: its first dimensions
LENS_TOP = 6  # tokens


class TracedLayer(NamedTuple):
    """After one layer; before the first, of the embeddings, without attention."""

    residual: Array  # [tokens, hidden] float32
    attention: Array | None  # [heads, tokens, tokens] float32: probabilities of the keys, by query
    logits: Array  # [vocab] float32: the final norm and the head of the residual at the traced position


class ModelTracer(Protocol):
    def layers(self, tokens: list[int], position: int) -> Iterator[TracedLayer]:
        """The embeddings, then each layer. Arrays are good until the next one. May be dropped at any of them."""


MakeTracer = Callable[[], ModelTracer]


def trace_model(
    tracer: ModelTracer, tokens: list[int], layer: int, position: int, stopped: Callable[[], bool]
) -> dict[str, Any] | None:
    """As the debug route shows it; None if it was stopped. `layer` is the one whose attention is shown."""
    norms: list[list[float]] = []
    values: list[list[float]] = []
    lens: list[dict[str, Any]] = []
    entropy: list[list[float]] = []
    shown: list[list[list[float]]] = []
    for number, found in enumerate(tracer.layers(tokens, position)):
        if stopped():
            return None
        norms.append(_rounded(np.linalg.norm(found.residual, axis=1)))
        values.append(_rounded(found.residual[position, :SHOWN_VALUES]))
        lens.append(_lens(found.logits))
        if found.attention is not None:
            entropy.append(_rounded(_entropy_bits(found.attention[:, position])))
            if number == layer + 1:
                shown = [[_rounded(row) for row in head] for head in found.attention]
    return {"norms": norms, "values": values, "lens": lens, "entropy_bits": entropy, "attention": shown}


def lazy_trace(make: MakeTracer) -> Callable[..., dict[str, Any] | None]:
    """`trace_model` with a tracer that is made for the first prompt. For one thread at a time."""
    made: list[ModelTracer] = []

    def trace(tokens: list[int], layer: int, position: int, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        if not made:
            made.append(make())
        return trace_model(made[0], tokens, layer, position, stopped)

    return trace


def attention_probabilities(
    q: Array,  # [tokens, heads, head_dim]
    k: Array,  # [tokens, kv_heads, head_dim]
    *,
    scale: float,
    window: int,  # tokens that a query sees, itself included; 0: all
    softcap: float,
) -> Array:
    """Of one sequence from its first token on: [heads, tokens, tokens]."""
    count, heads = q.shape[:2]
    keys = np.repeat(k, heads // k.shape[1], axis=1)
    scores: Array = np.einsum("qhd,khd->hqk", q, keys, dtype=np.float32) * np.float32(scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(count)[:, None] - np.arange(count)[None, :]
    hidden = (distance < 0) | ((distance >= window) if window else False)
    scores = np.where(hidden, -np.inf, scores)
    return softmax(scores)


def softmax(scores: Array) -> Array:
    powers: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normed: Array = powers / powers.sum(axis=-1, keepdims=True)
    return normed


def _lens(logits: Array) -> dict[str, Any]:
    probabilities = softmax(logits.astype(np.float64))
    best = np.argpartition(-probabilities, LENS_TOP)[:LENS_TOP]
    best = best[np.argsort(-probabilities[best], kind="stable")]
    return {"tokens": best.tolist(), "probs": _rounded(probabilities[best]), "entropy_bits": _entropy(probabilities)}


def _entropy(probabilities: Array) -> float:
    return round(float(_entropy_bits(probabilities[None])[0]), 4)


def _entropy_bits(probabilities: Array) -> Array:
    """[n, outcomes] -> [n]"""
    logs = np.log2(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    bits: Array = -(probabilities * logs).sum(axis=-1)
    return bits


def _rounded(numbers: Array) -> list[float]:
    return [round(float(number), 4) for number in numbers]
