"""Steps on a CUDA device, as CUDA graphs where there is one for the step, else kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from penstock.errors import OutOfMemory
from penstock.flow import Row, StepPlan, StepResult
from penstock.forward.backend import Model
from penstock.forward.chunk_graphs import ChunkGraphs
from penstock.forward.cuda_graphs import CudaGraphs
from penstock.forward.cuda_inputs import gather
from penstock.forward.decode_graphs import DecodeGraphs, Replayed
from penstock.forward.device_arena import DeviceArena
from penstock.forward.launched_step import LaunchedStep
from penstock.forward.readback import Readback
from penstock.forward.slot_tensors import SlotTensors
from penstock.forward.step_outputs import StepOutputs
from penstock.forward.torch_hidden_states import TorchHiddenStates
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Pages
from penstock.kernels.upload import upload
from penstock.sample.cuda_sampler import CudaSampler
from penstock.sample.reference.draws import Draws
from penstock.startup.preflight import readable

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache

ALIGNED = 16  # bytes: kernels expect vectors to begin at a multiple of them


@dataclass(frozen=True, slots=True)
class Computed:
    """The forward pass of a step."""

    hidden: Tensor  # [tokens, hidden], or [rows, hidden] where no request reads more than the last token of each row
    starts: Sequence[int]  # [rows + 1] on the host: where each row begins in `hidden`
    replayed: Replayed | None = None  # of a step that ran as a decode graph


class ReleasableMemory(NamedTuple):
    """What an engine gives back when it sleeps."""

    weights: DeviceArena
    kv: DeviceArena


class CudaBackend:
    """Implements `flow.Backend`. `launch` queues the whole step on the device and does not wait: drawn tokens go
    straight to their slots, so that the next step can be launched before this one is collected. Only for rows with a
    constraint does it read back the tokens of the step before, with the forward pass under way."""

    def __init__(
        self,
        model: Model,
        pages: Sequence[Pages],
        *,
        dtype: torch.dtype,
        context: int,
        max_sequences: int,
        grammars: GrammarCache | None = None,
        memory: ReleasableMemory | None = None,
    ) -> None:
        """`dtype`: that the model computes in."""
        spec, device = model.spec, pages[0].keys.device
        self._model, self._ops, self._pages, self._dtype = model, CudaOperations(), pages, dtype
        # One slot more than sequences: the padding rows of graphs use it.
        self._slots = SlotTensors(max_sequences + 1, context, pages[0].keys.shape[1], len(spec.cache_groups), device)
        self._memory = memory
        self._max_sequences = max_sequences
        self._graphs: CudaGraphs | None = None
        self._sampler = CudaSampler(spec.vocab_size, self._slots.tokens)
        self._outputs = StepOutputs(spec.vocab_size, grammars)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        self._slots.apply(plan.admits, plan.extends)
        for admit in plan.admits:
            self._sampler.admit(admit)
            self._outputs.admit(admit)
        computed = self._compute(plan.rows)
        hidden = computed.hidden

        def logits(first: int, end: int) -> Tensor:
            return self._logits(hidden, range(first, end))

        states = TorchHiddenStates(hidden, self._slots.tokens, logits)
        prompts, pooled = self._outputs.read(plan.rows, computed.starts, states)
        draws = self._sample(plan.rows, computed)
        tokens = Readback(draws.tokens) if draws is not None else None
        self._outputs.push(LaunchedStep(plan.number, plan.rows, tokens, draws, prompts, pooled))

    def collect(self) -> StepResult:
        return self._outputs.collect()

    def reset(self) -> None:
        self._outputs.reset()

    def release_memory(self) -> bool:
        """Weights go to the host. Kernels, graphs, slots and what steps compute with stay."""
        if self._memory is None:
            return False
        self._memory.weights.save()
        for arena in self._memory:
            arena.release()
        torch.cuda.empty_cache()
        return True

    def restore_memory(self) -> None:
        assert self._memory is not None
        try:
            for arena in self._memory:
                arena.restore()
        except torch.OutOfMemoryError as error:
            for arena in self._memory:
                arena.release()
            needed = sum(arena.size for arena in self._memory)
            raise OutOfMemory(
                f"the engine cannot wake: weights and KV cache take {readable(needed)} of GPU memory, which others use "
                f"meanwhile: {error}",
                param="model",
            ) from None

    def graphs(self, step_tokens: int) -> CudaGraphs:
        """Of decode steps and of steps with prompt chunks, not captured yet."""
        return CudaGraphs(
            DecodeGraphs(self._model, self._pages, self._slots, self._sampler, padding_slot=self._max_sequences),
            ChunkGraphs(self._model, self._pages, step_tokens, self._dtype),
        )

    def use(self, graphs: CudaGraphs) -> None:
        """Replay these from now on, wherever a step fits one of them."""
        self._graphs = graphs

    def _compute(self, rows: Sequence[Row]) -> Computed:
        graphs = self._graphs
        if graphs is not None and graphs.decode.fits(rows):
            replayed = graphs.decode.run(rows)
            return Computed(replayed.hidden, list(accumulate((row.count for row in rows), initial=0)), replayed)
        inputs = graphs.chunks.inputs(sum(row.count for row in rows)) if graphs is not None else None
        batch = gather(rows, self._slots, inputs)
        starts: Sequence[int] = batch.host_starts
        if graphs is not None and inputs is not None:
            return Computed(graphs.chunks.run(batch), starts)
        # Beyond the last attention only the last token of each row matters, unless a request reads all of them.
        if batch.num_single < batch.num_rows and not self._outputs.needs_hidden(rows):
            batch, starts = replace(batch, logits_indices=batch.starts[1:] - 1), range(len(rows) + 1)
        return Computed(self._model.forward(self._ops, batch, self._pages), starts)

    def _sample(self, rows: Sequence[Row], computed: Computed) -> Draws | None:
        sampled = [index for index, row in enumerate(rows) if row.draws]
        if not sampled:
            return None
        slots = [rows[index].slot for index in sampled]
        positions = [rows[index].start + rows[index].count for index in sampled]
        last = [computed.starts[index + 1] - 1 for index in sampled]
        device, replayed = computed.hidden.device, computed.replayed
        all_sampled = len(sampled) == len(computed.hidden)
        if replayed is not None and self._sampler.argmax_only(slots):
            argmax = replayed.argmax
            return Draws(tokens=argmax if all_sampled else argmax.index_select(0, upload(last, device)))
        if replayed is None:
            logits, replay = self._logits(computed.hidden, last), None
        elif all_sampled:
            logits, replay = replayed.logits, replayed.draw
        else:
            logits, replay = replayed.logits.index_select(0, upload(last, device)), None
        constraints = self._outputs.constraints(slots, positions)  # last: the device has work meanwhile
        return self._sampler.sample(logits, slots, positions, constraints, replay)

    def _logits(self, hidden: Tensor, packed: Sequence[int]) -> Tensor:
        """[n, vocab] of the packed tokens [n], which ascend."""
        picked = hidden[packed[0] : packed[-1] + 1]
        if len(picked) > len(packed) or picked.data_ptr() % ALIGNED:
            picked = hidden.index_select(0, upload(packed, hidden.device))
        return self._ops.logits(picked, self._model.head, self._model.spec.logit_softcap)
