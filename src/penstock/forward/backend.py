"""The parts that every backend is built from and with.

A backend (`flow.Backend`) owns the forward pass and the sampler of one kind of device. Each has its module here, with a
`build` function that `startup.build` looks up by name:

torch_backend     torch operations on the CPU: the reference, and where the native kernels were not built
native_backend    the native CPU kernels: one call per step
cuda_backend      Triton kernels and cuBLAS, with CUDA graphs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from penstock.model.weights.place import WHOLE, Shard

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.adapters import AdapterCache
    from penstock.flow import Backend
    from penstock.flow.step_costs import StepCosts
    from penstock.forward.memory import CacheSize
    from penstock.forward.model_trace import MakeTracer
    from penstock.forward.rank_forward import Followers
    from penstock.kernels.arrays import Array, Dtype
    from penstock.kernels.interface import Batch, Operations, Pages
    from penstock.kernels.weight import Weight
    from penstock.model.weights.kv_scales import KvScales
    from penstock.settings import Settings
    from penstock.speculate.proposer import DraftSource
    from penstock.store.files import ModelFiles
    from penstock.store.kv_types import KvTypes
    from penstock.store.spec import ModelSpec

BackendKind = Literal["torch", "native", "cuda"]
DeviceKind = Literal["cpu", "cuda"]


class StepLimits(NamedTuple):
    """How much one step takes on."""

    step_tokens: int
    max_sequences: int
    lookahead: int


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """What to build: the settings, with every "auto" resolved."""

    kind: BackendKind
    settings: Settings
    files: ModelFiles
    context: int  # most tokens of a sequence; where none was set, the cache may have room for less: CacheSize.context
    device: DeviceKind
    dtype: Dtype
    kv_types: KvTypes
    kv_scales: Sequence[KvScales] | None  # [layers] static ones of the checkpoint; None: each token has its own
    limits: StepLimits
    threads: int
    drafts: DraftSource | None = None  # what proposes draft tokens; None: nothing does
    adapter_bytes: int = 0  # memory for adapters; 0: there are none
    audit: float = 0.0  # share of steps with drafts that are computed again without
    shard: Shard = WHOLE  # the rank that it is for, of a tensor-parallel group
    meeting: str = ""  # the folder where the ranks of a group meet
    followers: Followers | None = None  # on rank 0: the other ranks

    @property
    def spec(self) -> ModelSpec:
        return self.files.spec


class BuiltBackend(NamedTuple):
    backend: Backend
    weights_bytes: int
    cache: CacheSize
    costs: StepCosts | None = None  # of a backend that drafts tokens
    tracer: MakeTracer | None = None  # of the model's inside; None: there is none for this device
    adapters: AdapterCache[Any] | None = None  # None: no sequence may have one
    kv_memory: Sequence[Array] | None = None  # [groups] of [blocks, bytes]; None: blocks are not in one piece
    keeps_codes: bool = False  # on a GPU: weights stay as a quantized checkpoint has them


EndPhase = Callable[[str], None]  # reports that a phase of the start has ended


class Model(Protocol):
    """A model as backends that launch operations see it."""

    spec: ModelSpec
    head: Weight  # [vocab, hidden]

    def forward(
        self, ops: Operations, batch: Batch, pages: Sequence[Pages], tap: Callable[[int, Tensor], None] | None = None
    ) -> Tensor:
        """`tap`: see `model.Decoder`."""
