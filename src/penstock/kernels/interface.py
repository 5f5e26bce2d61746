"""The operations a model is wired from, with one implementation per kind of device.

A model's `forward(ops, batch)` only calls these. So a CUDA graph can capture it, a recorder can flatten it into a list
of native operations, and a reader sees the architecture. Tokens of all rows are packed along the first dimension,
without padding.

A `Tensor` is a torch tensor for torch and CUDA. The native backend has no torch: there parameters and pages are numpy
arrays, and what the operations compute are symbols of the recorder (`cpu.record`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from penstock.kernels.arrays import Array
from penstock.kernels.low_rank import LowRank
from penstock.kernels.weight import Weight

if TYPE_CHECKING:
    from torch import Tensor

Activation = Literal["silu", "gelu_tanh"]


def as_tensor(array: Array) -> Tensor:
    """An array of the native backend, by the type that the structs here have."""
    return cast("Tensor", cast(object, array))


def as_array(tensor: Tensor) -> Array:
    """The reverse."""
    return cast(Array, cast(object, tensor))


@dataclass(frozen=True, slots=True)
class Pages:
    """The KV pages of one layer: its keys and values, by block. Block 0 is never allocated: padding writes there. The
    native CPU kernels have their own order within a block; native/attention.h says why."""

    keys: Tensor  # [blocks, block_size, kv_heads, head_dim]; native: [blocks, kv_heads, head_dim, block_size]
    values: Tensor  # [blocks, block_size, kv_heads, head_dim]; native: [blocks, kv_heads, block_size, head_dim]
    # Quantized on a GPU: float8_e4m3fn and int8, with scales [blocks, kv_heads, block_size] float32 or [1], and int4,
    # uint8 [.., head_dim / 2], with scales [blocks, kv_heads, 4, block_size] float16; in the order of `cuda.kv_codes`.
    # Of native pages: int8 [blocks, kv_heads, block_size] float32; int4 [blocks, kv_heads, groups, block_size] float16,
    # and of values [blocks, kv_heads, block_size, groups]. int4 has pairs of numbers, head_dim / 2 uint8.
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class BlockMap:
    """Where the rows of a step have their keys and values, in one cache group."""

    tables: Tensor  # [rows, blocks of the longest row] int32: block ids by position // block_size; the rest is 0
    targets: Tensor  # [tokens] int64: block * block_size + offset where each token's key and value are written


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's inputs, on the device. Rows of a single token come first, longer chunks after them. Immutable:
    operations cache what they derive from it for the following layers."""

    tokens: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64
    starts: Tensor  # [rows + 1] int32: row r owns packed tokens starts[r] .. starts[r + 1] - 1
    lengths: Tensor  # [rows] int32: positions 0 .. lengths[r] - 1 exist once this step's keys are written
    maps: tuple[BlockMap, ...]  # [cache groups]
    num_rows: int
    num_single: int  # rows 0 .. num_single - 1 have one token each
    # The same for code on the host, as lists, since reading numbers from tensors is slow.
    host_starts: list[int]
    host_lengths: list[int]
    logits_indices: Tensor | None = None  # [n] packed tokens whose hidden states are returned; None: all
    # [rows] int32: how many rows from this one on, up to 16, are consecutive tokens of one sequence. None: every row is
    # of another sequence.
    runs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rotary:
    """cos and sin by position, from `layers.rope`."""

    table: Tensor  # [positions, 2, dim / 2] float32
    dim: int  # the first `dim` dimensions of a head are rotated, in halves (x[i] with x[i + dim / 2])


class Norm(NamedTuple):
    """RMS norm over the last dimension, in float32."""

    weight: Tensor  # float32, also in models of 16 bits
    eps: float


class HeadNorms(NamedTuple):
    """RMS norms over each head of q and of k, in float32."""

    q: Tensor  # [head_dim] float32, as k
    k: Tensor
    eps: float


class Linear(NamedTuple):
    """A product with a weight [out, in] and what surrounds it, described once, when the model is built. In this order:
    norm of x, product, sum over ranks, bias, low-rank delta, gated activation. Of a partial sum the delta is one, too,
    and comes before the sum over ranks. The sum with the residual is an argument of the operation.

    Implementations unpack all fields. So each of them has to honour or to reject a new one, and none can overlook it.
    """

    weight: Weight
    bias: Tensor | None = None  # [out]
    norm: Norm | None = None  # of x
    gate: Activation | None = None  # the rows of the weight are gate and up: gives activation(gate) * up, [out / 2]
    reduce: bool = False  # of tensor parallelism: a rank's product is a partial sum; only `rank_ops` reduces
    delta: LowRank | None = None  # that adapters add, to the rows of a step that have one


class UnreducedProduct(TypeError):
    """An operation was given a product of one rank of several, and knows no other ranks."""


class Operations(Protocol):
    def embed(self, tokens: Tensor, table: Weight, scale: float) -> Tensor:
        """[tokens] -> [tokens, hidden], with the delta of adapters (`low_rank.EMBEDDING`)."""

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        """The norm of x, or `onto` with it added, in place."""

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        """[tokens, in] -> [tokens, out], as `linear` describes it; or `onto`, which is not x, with that added, in
        place."""

    def rotate_store(
        self,
        qkv: Tensor,  # [tokens, (heads + 2 * kv_heads) * head_dim]
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        rotary: Rotary,
        norms: HeadNorms | None,
    ) -> Tensor:
        """Apply the head norms to q and k, rotate them (RoPE), write k and v to the KV pages; gives q
        [tokens, heads, head_dim]."""

    def attention(
        self, q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, *, scale: float, window: int, softcap: float
    ) -> Tensor:
        """Causal attention of each row's queries over its own pages; gives [tokens, heads * head_dim]."""

    def logits(self, x: Tensor, weight: Weight, softcap: float, out: Tensor | None = None) -> Tensor:
        """x [tokens, hidden] projected on the vocabulary, float32, with the delta of adapters (`low_rank.HEAD`); into
        `out` if there is one."""
