"""The runner: keeps the slots, runs the model over each plan, draws the tokens.

This one computes with `kernels.interface.Operations`, those of torch or of CUDA; `forward.native_runner` is the one of
the native CPU kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from penstock.flow import Admit, Row, SamplingParams, StepPlan, StepResult
from penstock.forward.in_flight import Launched
from penstock.forward.inputs import gather
from penstock.forward.orders import Orders
from penstock.forward.readback import Readback
from penstock.forward.slots import Slots
from penstock.kernels.interface import Batch, Operations, Pages
from penstock.kernels.upload import upload
from penstock.kernels.weight import Weight
from penstock.sample import Draws
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from penstock.forward.graphs import Graphs, Replayed
    from penstock.grammar.grammar_cache import GrammarCache

ALIGNED = 16  # bytes: kernels take vectors to begin at a multiple of them


class Model(Protocol):
    spec: ModelSpec
    head: Weight  # [vocab, hidden]

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Computed:
    """What the model made of a step's rows."""

    hidden: Tensor  # [tokens, hidden], or [rows, hidden] where nobody wants more than the last token of each row
    starts: Sequence[int]  # [rows + 1] on the host: where each row begins in `hidden`
    replayed: Replayed | None = None  # of a step that ran as a decode graph


class ModelRunner:
    """Implements `flow.Runner`. `launch` queues the whole step on the device and does not wait: a drawn token goes
    straight to its slot, so that the next step can be launched before this one is collected. Only if a row has a
    constraint are the tokens of the step before read back, with the forward pass under way."""

    def __init__(
        self,
        model: Model,
        ops: Operations,
        pages: Sequence[Pages],
        *,
        context: int,
        max_sequences: int,
        grammars: GrammarCache | None = None,
    ) -> None:
        spec, device = model.spec, pages[0].keys.device
        self._model, self._ops, self._pages = model, ops, pages
        # One slot more than there are sequences: that of rows which only fill up a graph.
        self._slots = Slots(max_sequences + 1, context, pages[0].keys.shape[1], len(spec.cache_groups), device)
        self._max_sequences = max_sequences
        self._graphs: Graphs | None = None
        self._orders = Orders(spec.vocab_size, self._slots.tokens, grammars)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        self._slots.apply(plan.admits, plan.extends)
        self._orders.admit(plan.admits)
        computed = self._compute(plan.rows)
        hidden, starts = computed.hidden, computed.starts

        def logits(first: int, end: int) -> Tensor:
            return self._logits(hidden, range(first, end))

        prompts, pooled = self._orders.read(plan.rows, starts, hidden, logits)
        draws = self._draw(plan.rows, computed)
        tokens = Readback(draws.tokens) if draws is not None else None
        self._orders.launched(Launched(plan.number, plan.rows, tokens, draws, prompts, pooled))

    def collect(self) -> StepResult:
        return self._orders.collect()

    def reset(self) -> None:
        self._orders.reset()

    def warm_up(self, tokens: int) -> None:
        """Runs real steps over block 0: a prompt of `tokens` and shorter ones, some of them only where there will be no
        graph of as many rows, drawn from in each way there is; and as many sequences as there may be beside a prompt.
        No step reads what another has drawn: while kernels are only noted (`kernels.cuda.precompile`), that can be
        anything.
        """
        greedy, filtered = SamplingParams(temperature=0.0), SamplingParams(top_k=50, top_p=0.9)
        full = SamplingParams(presence_penalty=1.0, banned_tokens=(0,))

        def admit(slot: int, length: int, params: SamplingParams) -> Admit:
            blocks = [[0] * -(-(length + 1) // self._slots.block_size) for _ in self._slots.tables]
            return Admit(slot, [0] * (length + 1), length, params, 0, 0, (), blocks)

        def step(admits: list[Admit], rows: list[Row]) -> None:
            self.launch(StepPlan(0, admits, [], rows))
            self.collect()

        lengths = [(tokens, full), (min(tokens, 100), greedy), (min(tokens, 2), filtered)]
        lengths += [(length, greedy) for length in (50, 20) if self._max_sequences < length < tokens]
        for length, params in lengths:
            for row in (Row(0, 0, length, True), Row(0, length, 1, True)):
                step([admit(0, length, params)], [row])
        others = range(1, min(self._max_sequences, tokens - 1))
        length = tokens - len(others)
        step(
            [*(admit(slot, 1, full if slot % 2 else greedy) for slot in others), admit(0, length, greedy)],
            [*(Row(slot, 1, 1, True) for slot in others), Row(0, 0, length, True)],
        )

    def graphs(self, step_tokens: int) -> Graphs:
        """CUDA graphs of small steps and of those with chunks, yet to be captured."""
        from penstock.forward.chunk_graphs import ChunkGraphs
        from penstock.forward.graphs import DecodeGraphs, Graphs
        from penstock.sample.cuda_sampler import CudaSampler

        sampler = self._orders.sampler
        assert isinstance(sampler, CudaSampler)
        return Graphs(
            DecodeGraphs(self._model, self._pages, self._slots, sampler, spare=self._max_sequences),
            ChunkGraphs(self._model, self._pages, step_tokens),
        )

    def use(self, graphs: Graphs) -> None:
        """Replay these from now on, wherever a step fits one of them."""
        self._graphs = graphs

    def _compute(self, rows: Sequence[Row]) -> Computed:
        graphs = self._graphs
        if graphs is not None and graphs.decode.fits(rows):
            replayed = graphs.decode.run(rows)
            return Computed(replayed.hidden, list(accumulate((row.count for row in rows), initial=0)), replayed)
        room = graphs.chunks.room(sum(row.count for row in rows)) if graphs is not None else None
        batch = gather(rows, self._slots, room)
        starts: Sequence[int] = batch.host_starts
        if graphs is not None and room is not None:
            return Computed(graphs.chunks.run(batch), starts)
        # Beyond the last attention only the last token of each row matters, unless somebody reads all of them.
        if batch.num_single < batch.num_rows and not self._orders.wants_hidden(rows):
            batch, starts = replace(batch, wanted=batch.starts[1:] - 1), range(len(rows) + 1)
        return Computed(self._model.forward(self._ops, batch, self._pages), starts)

    def _draw(self, rows: Sequence[Row], computed: Computed) -> Draws | None:
        sampled = [index for index, row in enumerate(rows) if row.sample]
        if not sampled:
            return None
        slots = [rows[index].slot for index in sampled]
        positions = [rows[index].start + rows[index].count for index in sampled]
        last = [computed.starts[index + 1] - 1 for index in sampled]
        device, replayed = computed.hidden.device, computed.replayed
        if replayed is None:
            return self._orders.draw(self._logits(computed.hidden, last), slots, positions)
        all_drawn = len(sampled) == len(computed.hidden)
        if self._orders.sampler.wants_largest(slots):
            return Draws(replayed.largest if all_drawn else replayed.largest.index_select(0, upload(last, device)))
        if all_drawn:
            return self._orders.draw(replayed.logits, slots, positions, replayed.draw)
        return self._orders.draw(replayed.logits.index_select(0, upload(last, device)), slots, positions)

    def _logits(self, hidden: Tensor, packed: Sequence[int]) -> Tensor:
        """[n, vocab] of the packed tokens [n], which ascend."""
        picked = hidden[packed[0] : packed[-1] + 1]
        if len(picked) > len(packed) or picked.data_ptr() % ALIGNED:
            picked = hidden.index_select(0, upload(packed, hidden.device))
        return self._ops.logits(picked, self._model.head, self._model.spec.logit_softcap)
