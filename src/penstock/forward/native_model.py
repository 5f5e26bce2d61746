"""A model as native programs: one call per step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from penstock.flow import Row
from penstock.forward.slot_arrays import SlotArrays
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.draw_table import LogprobTable
from penstock.kernels.cpu.program import Layout, Pool, Program, page_types
from penstock.kernels.cpu.record import Recordable, record
from penstock.kernels.interface import Pages
from penstock.sample.logprobs import Logprobs
from penstock.sample.masks import Floats
from penstock.sample.native_sampler import StepDraws, table_logprobs
from penstock.store.spec import ModelSpec


class NativeModel:
    """A model recorded for steps that only sample, and for steps whose hidden states a request reads; there it
    implements `HiddenStates`. Results are overwritten by the next run."""

    def __init__(
        self,
        model: Recordable,
        spec: ModelSpec,
        pool: Pool,
        pages: Sequence[Pages],
        slots: SlotArrays,
        *,
        step_tokens: int,
        max_draws: int | None = None,
        taps: tuple[int, ...] | None = None,
        adapted: bool = False,
    ) -> None:
        """`max_draws`: of a step; None: one of each slot. `taps`: of `states`; None: they are not read. `adapted`: rows
        may have adapters."""
        self._model, self._spec, self._pool, self._pages = model, spec, pool, pages
        self._taps = taps
        self._layout = Layout(
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=slots.block_size,
            page_types=page_types(pages),
            tokens=slots.tokens,
            tables=slots.tables,
            max_tokens=step_tokens,
            max_wanted=max_draws or len(slots.tokens),
        )
        # By whether they show hidden states, and whether rows have adapters: so steps without adapters are the same as
        # in an engine that has none. The others are recorded at the first use, and use the memory of the first one,
        # which needs the most.
        self._programs: dict[tuple[bool, bool], Program] = {}
        if adapted:
            self._program(show=False, adapted=True)  # not while streams wait
        self._sampling = self._last = self._program(show=False, adapted=False)
        self._rows = array("i")  # of the last step
        self._adapters: array[int] | None = None  # likewise

    def run(
        self,
        rows: Sequence[Row],
        draws: StepDraws | None,
        *,
        show: bool,
        kept: array[int] | None = None,
        adapters: array[int] | None = None,
    ) -> list[int]:
        """Draw the tokens of each row by `draws`, and write them to its slot; None: only compute their logits. With
        `show` the hidden states of all tokens can be read afterwards. `kept` and `adapters` as in
        `Program.run`."""
        self._last = self._program(show=show, adapted=adapters is not None)
        self._rows = array("i", [value for row in rows for value in (row.slot, row.start, row.count, row.draws)])
        self._adapters = adapters
        if draws is None:
            return self._last.run(self._rows, adapters=adapters)
        return self._last.run(self._rows, draws=draws.table, logprobs=draws.logprobs, kept=kept, adapters=adapters)

    def sampled_logits(self, count: int) -> Floats:
        """[count, vocab] of the sampled rows, until the next run."""
        return self._last.logits(count)

    def hidden(self, count: int) -> Array:
        """[count, hidden] of the tokens of the last step, run with `show`."""
        return self._last.hidden(count)

    def states(self, count: int) -> Array:
        """[count, hidden] of the tokens of the last step, after the final norm; or [count, taps * hidden]."""
        return np.concatenate(self._last.taps(count), axis=1) if self._taps else self._last.hidden(count)

    def logits(self, first: int, end: int, logprobs: LogprobTable | None = None) -> Array:
        """[n, vocab] of tokens first .. end - 1 of the last step, run with `show`. Overwrites `sampled_logits`.
        `logprobs` [n] is measured from them."""
        wanted = array("i", range(first, end))
        self._last.run(
            self._rows, wanted=wanted, logprobs=logprobs, first=self._last.recording.head, adapters=self._adapters
        )
        return self._last.logits(len(wanted))

    def total(self, first: int, end: int) -> Floats:
        """Of `HiddenStates`, as the two below."""
        total: Floats = self.hidden(end)[first:end].sum(0, dtype=np.float64).astype(np.float32)
        return total

    def logprobs(self, first: int, end: int, slot: int, position: int, count: int) -> Logprobs:
        counts = [count] * (end - first)
        following = self._layout.tokens[slot, position + 1 : position + 1 + len(counts)]
        table = LogprobTable(counts, self._spec.vocab_size, following)
        self.logits(first, end, table)
        return table_logprobs(table, list(range(len(counts))), counts)

    @staticmethod
    def read(vectors: list[Floats]) -> Floats:
        return np.stack(vectors)

    def profile(self, on: bool) -> dict[str, int]:
        """Nanoseconds by kind of operation, of steps that only sample."""
        return self._sampling.profile(on)

    def _program(self, *, show: bool, adapted: bool) -> Program:
        found = self._programs.get((show, adapted))
        if found is not None:
            return found
        spec = self._spec
        recording = record(
            self._model,
            self._pages,
            groups=len(spec.cache_groups),
            head_dim=spec.head_dim,
            softcap=spec.logit_softcap,
            wanted_only=not show and self._taps != (),
            taps=self._taps or (),
            adapted=adapted,
        )
        beside = next(iter(self._programs.values()), None)
        made = self._programs[show, adapted] = Program(self._pool, recording, self._layout, beside)
        return made
