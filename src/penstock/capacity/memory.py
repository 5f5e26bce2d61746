"""Device memory: weights, KV cache, workspace. Figures are per device; `degree`: of tensor parallelism."""

from __future__ import annotations

from bisect import bisect_right
from math import ceil

from penstock.capacity.formats import Format
from penstock.capacity.shape import Shape
from penstock.settings import CacheSettings

BLOCK_TOKENS = CacheSettings().block_size
LOGIT_BYTES = 4  # sampling is done in 32 bit


def weights_bytes(shape: Shape, format: Format, degree: int = 1) -> float:
    """Matrices and tables are split, vectors are on every device."""
    tables = (1 if shape.tied else 2) * shape.table
    bits = (shape.layers * shape.layer_matrices * format.bits + tables * format.table_bits) / degree
    return (bits + shape.vectors * format.vector_bits) / 8


def read_bytes(shape: Shape, format: Format, degree: int = 1) -> float:
    """Weight bytes that a step reads: all but the embedding table, of which it reads a few rows."""
    bits = (shape.layers * shape.layer_matrices * format.bits + shape.table * format.table_bits) / degree
    return (bits + shape.vectors * format.vector_bits) / 8


def kv_bytes(shape: Shape, kv_bits: float, tokens: float, degree: int = 1) -> float:
    """Keys and values of a sequence: of all its tokens, or of the last `window` in layers that have one.

    A KV head cannot be split: with more devices than KV heads, several of them hold the same one.
    """
    heads = ceil(shape.kv_heads / degree)
    return 2 * heads * shape.head_dim * kv_bits / 8 * shape.seen(tokens)


def workspace_bytes(shape: Shape, step_tokens: int, max_sequences: int, number_bytes: int, degree: int = 1) -> float:
    """Activations of a step: the residual stream, its norm and sum; q, k and v; gate and up; and the logits."""
    split = (shape.heads + 2 * shape.kv_heads) * shape.head_dim + 2 * shape.intermediate
    activations = step_tokens * (3 * shape.hidden + split / degree) * number_bytes
    return activations + min(max_sequences, step_tokens) * shape.vocab * LOGIT_BYTES / degree


def longest_context(shape: Shape, kv_bits: float, room_bytes: float, degree: int = 1) -> int:
    """Tokens of a single sequence that fit, up to the model's context."""

    def blocks_bytes(blocks: int) -> float:
        return kv_bytes(shape, kv_bits, blocks * BLOCK_TOKENS, degree)

    most = ceil(shape.context / BLOCK_TOKENS)
    blocks = bisect_right(range(most + 1), room_bytes, key=blocks_bytes) - 1
    return min(shape.context, max(0, blocks) * BLOCK_TOKENS)


def request_bytes(shape: Shape, kv_bits: float, tokens: int, degree: int = 1) -> float:
    """Keys and values of a sequence, in whole blocks."""
    return kv_bytes(shape, kv_bits, ceil(tokens / BLOCK_TOKENS) * BLOCK_TOKENS, degree)


def concurrent(shape: Shape, kv_bits: float, room_bytes: float, tokens: int, degree: int = 1) -> int:
    """Sequences of `tokens` that fit at once."""
    return int(room_bytes // request_bytes(shape, kv_bits, tokens, degree))
