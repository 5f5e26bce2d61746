"""The CUDA backend on a CPU: kernels of inputs and draws in Triton's interpreter, the layers in torch operations, and
graphs that run their work again. Needs TRITON_INTERPRET=1, and takes the place of the torch backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers import triton_device  # noqa: F401 - what the interpreter lacks
from penstock.forward import (
    accepted_draws,
    chunk_graphs,
    cuda_backend,
    cuda_chain,
    cuda_draft_model,
    cuda_medusa,
    cuda_proposer,
    decode_graphs,
)
from penstock.forward.backend import BackendConfig, BuiltBackend, EndPhase
from penstock.forward.cuda_backend import CudaBackend
from penstock.forward.cuda_speculation import load_proposer, start_drafting
from penstock.forward.loading import choose_cache_size
from penstock.forward.memory import host_memory
from penstock.forward.readback import Readback
from penstock.forward.torch_loading import allocate_pages, load_model
from penstock.kernels.cuda import low_rank
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Batch, BlockMap, Linear, Pages
from penstock.kernels.low_rank import HEAD
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import Weight
from penstock.model import Decoder
from penstock.model.load_dense import TORCH_DTYPES

CPU = torch.device("cpu")


class HostOperations(TorchOperations):
    """Of batches whose lengths on the host are those of the capture. Deltas of adapters are computed by the kernels."""

    def __init__(self, deterministic: bool = False) -> None:
        super().__init__()
        self.deltas: low_rank.StepDeltas | None = None

    def embed(self, tokens: Tensor, table: Weight, scale: float) -> Tensor:
        x = super().embed(tokens, table, scale)
        if self.deltas is not None:
            low_rank.embed(x, tokens, scale, self.deltas)
        return x

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        if linear.delta is None or self.deltas is None:
            return super().linear(x, linear, onto)
        return CudaOperations._adapted(self, x, linear, onto, linear.delta, self.deltas)  # type: ignore[arg-type]

    def logits(self, x: Tensor, weight: Weight, softcap: float, out: Tensor | None = None) -> Tensor:
        if self.deltas is None:
            return super().logits(x, weight, softcap, out)
        assert not softcap
        scores = super().linear(x, Linear(weight)).float()
        low_rank.expand(low_rank.shrink(x, None, HEAD, self.deltas)[1], scores, HEAD, self.deltas)
        return scores if out is None else out.copy_(scores)

    def attention(self, q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, **how: Any) -> Tensor:
        starts, lengths = batch.starts.tolist(), batch.lengths.tolist()
        own = replace(batch, host_starts=starts, host_lengths=lengths)
        return super().attention(q, pages, block_map, own, **how)


class RepeatedWork:
    """In place of a CUDA graph."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self.made = work, work()

    def replay(self) -> None:
        for before, made in zip(_tensors(self.made), _tensors(self._work()), strict=True):
            before.copy_(made)


def _tensors(made: Any) -> tuple[Tensor, ...]:
    if isinstance(made, tuple):
        return made
    return () if made is None else (made,)


class Copied(Readback):
    """What is read back from a CPU would else be the tensor itself, which later steps write to."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(values.clone())


class RepeatedCapture:
    """In place of `GraphCapture`."""

    def capture(self, work: Callable[[], Any]) -> tuple[RepeatedWork, Any]:
        graph = RepeatedWork(work)
        return graph, graph.made


def build(config: BackendConfig, grammars: Any, end_phase: EndPhase) -> BuiltBackend:
    """As `forward.cuda_startup.build`."""
    for module in (chunk_graphs, cuda_backend, cuda_chain, cuda_draft_model, cuda_medusa, decode_graphs):
        module.CudaOperations = HostOperations  # type: ignore[attr-defined]
    for reading in (accepted_draws, cuda_backend, cuda_proposer):
        reading.Readback = Copied  # type: ignore[attr-defined]
    model = load_model(config, CPU)
    loaded = load_proposer(config, model, None)
    end_phase("weights")
    size = choose_cache_size(config, host_memory())
    pages = allocate_pages(config.spec, size, TORCH_DTYPES[config.dtype], CPU)
    slots, capture = config.limits.max_sequences, RepeatedCapture()
    backend = CudaBackend(
        model,
        pages,
        dtype=TORCH_DTYPES[config.dtype],
        context=size.context,
        max_sequences=slots,
        grammars=grammars,
        drafts=config.drafts,
        head=None if isinstance(loaded, Decoder) else loaded,
    )
    graphs = backend.graphs(config.limits.step_tokens)
    graphs.capture(capture)  # type: ignore[arg-type]
    backend.use(graphs)
    costs = None
    if config.drafts is not None:
        costs = start_drafting(config, backend, loaded, size, capture, weights_bytes=0, allocate=None)  # type: ignore[arg-type]
    return BuiltBackend(backend, model.num_bytes, size, costs)
