"""Steps on a CPU through a native program: rows in, drawn tokens out, one call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from penstock.flow import Row, StepPlan, StepResult
from penstock.forward.in_flight import Launched
from penstock.forward.orders import Orders
from penstock.forward.slots import Slots
from penstock.kernels.cpu.prefault import Prefault
from penstock.kernels.cpu.program import PAGE_TYPES, DrawTable, Layout, Pool, Program
from penstock.kernels.cpu.record import Recordable, record
from penstock.kernels.interface import Pages
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache


class Model(Recordable, Protocol):
    spec: ModelSpec


class NativeRunner:
    """Implements `flow.Runner`, as `ModelRunner` does. A step is over when `launch` returns."""

    def __init__(
        self,
        model: Model,
        pool: Pool,
        pages: Sequence[Pages],
        *,
        context: int,
        max_sequences: int,
        step_tokens: int,
        grammars: GrammarCache | None = None,
    ) -> None:
        """`pages` are native ones: see `kernels.interface.Pages`."""
        spec, block_size = model.spec, pages[0].keys.shape[3]
        self._slots = Slots(max_sequences, context, block_size, len(spec.cache_groups), torch.device("cpu"))
        self.model = NativeModel(model, spec, pool, pages, self._slots, step_tokens=step_tokens)
        tokens = self._slots.tokens
        self._orders = Orders(spec.vocab_size, tokens, grammars, natively=True, most_rows=max_sequences)
        ahead = -(-step_tokens // block_size)
        self._prefaults = [Prefault(pages[group.layers[0]].keys, ahead) for group in spec.cache_groups]

    def launch(self, plan: StepPlan) -> None:
        self._slots.apply(plan.admits, plan.extends)
        if plan.admits or plan.extends:
            self._prefault(plan)
        self._orders.admit(plan.admits)
        rows = plan.rows
        sampled = [row for row in rows if row.sample]
        slots, positions = [row.slot for row in sampled], [row.start + row.count for row in sampled]
        show = self._orders.wants_hidden(rows)
        draws = self._orders.sampler.native(slots, positions)
        drawn = self.model.run(rows, draws, show=show)
        tokens = drawn if draws is not None else None
        if tokens is not None and not show:
            self._orders.launched(Launched(plan.number, rows, tokens, None, {}, None))
        else:
            self._orders.launched(self._finish(plan, slots, positions, tokens, show))

    @torch.inference_mode()
    def _finish(
        self, plan: StepPlan, slots: list[int], positions: list[int], tokens: list[int] | None, show: bool
    ) -> Launched:
        """What is left to torch: draws that native code has not made (`tokens` is None), and what is made of hidden
        states."""
        rows, draws = plan.rows, None
        if tokens is None:
            draws = self._orders.draw(self.model.sampled_logits(len(slots)), slots, positions)
            tokens = draws.tokens.tolist()
        if not show:
            return Launched(plan.number, rows, tokens, draws, {}, None)
        starts = list(accumulate((row.count for row in rows), initial=0))
        prompts, pooled = self._orders.read(rows, starts, self.model.hidden(starts[-1]), self.model.logits)
        return Launched(plan.number, rows, tokens, draws, prompts, pooled)

    def _prefault(self, plan: StepPlan) -> None:
        for group, memory in enumerate(self._prefaults):
            taken = [admit.blocks[group] for admit in plan.admits]
            taken += [extend.blocks for extend in plan.extends if extend.group == group]
            memory.cover(max((max(blocks) for blocks in taken if blocks), default=0))

    def collect(self) -> StepResult:
        return self._orders.collect()

    def reset(self) -> None:
        self._orders.reset()


class NativeModel:
    """A model recorded twice: for steps that only draw tokens, and for those whose hidden states somebody reads. What
    it gives is good until the next run."""

    def __init__(
        self, model: Recordable, spec: ModelSpec, pool: Pool, pages: Sequence[Pages], slots: Slots, *, step_tokens: int
    ) -> None:
        self._model, self._spec, self._pool, self._pages = model, spec, pool, pages
        self._layout = Layout(
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=slots.block_size,
            page_type=PAGE_TYPES[pages[0].keys.dtype],
            tokens=slots.tokens,
            tables=slots.tables,
            max_tokens=step_tokens,
            max_wanted=len(slots.tokens),
        )
        self._drawing = self._last = self._program(wanted_only=True)
        self._showing: Program | None = None  # made when it is first needed
        self._rows = array("i")  # of the last step

    def run(self, rows: Sequence[Row], draws: DrawTable | None, *, show: bool) -> list[int]:
        """Draw a token for each sampled row, as `draws` has it, into its slot; None: their logits are for others. With
        `show` the hidden states of all tokens can be read as well."""
        if show and self._showing is None:
            self._showing = self._program(wanted_only=False)
        self._last = self._showing if show and self._showing is not None else self._drawing
        self._rows = array("i", [value for row in rows for value in (row.slot, row.start, row.count, row.sample)])
        return self._last.run(self._rows, draws=draws)

    def sampled_logits(self, count: int) -> Tensor:
        """[count, vocab] of the sampled rows."""
        return self._last.logits(count)

    def hidden(self, count: int) -> Tensor:
        """[count, hidden] of the tokens of the step just shown."""
        return self._last.hidden(count)

    def logits(self, first: int, end: int) -> Tensor:
        """[n, vocab] of tokens first .. end - 1 of the step just shown. Those of the sampled rows are gone then."""
        wanted = array("i", range(first, end))
        self._last.run(self._rows, wanted=wanted, first=self._last.recording.head)
        return self._last.logits(len(wanted))

    def profile(self, on: bool) -> dict[str, int]:
        """Nanoseconds by kind of operation, of steps that only draw."""
        return self._drawing.profile(on)

    def _program(self, *, wanted_only: bool) -> Program:
        spec = self._spec
        recording = record(
            self._model,
            self._pages,
            groups=len(spec.cache_groups),
            head_dim=spec.head_dim,
            softcap=spec.logit_softcap,
            wanted_only=wanted_only,
        )
        return Program(self._pool, recording, self._layout)
