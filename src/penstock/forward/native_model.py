"""A model as native programs: one call per step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from penstock.flow import Row
from penstock.forward.slot_arrays import SlotArrays
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.draw_table import LogprobTable
from penstock.kernels.cpu.program import PAGE_TYPES, Layout, Pool, Program
from penstock.kernels.cpu.record import Recordable, record
from penstock.kernels.interface import Pages, as_array
from penstock.sample.logprobs import Logprobs
from penstock.sample.masks import Floats
from penstock.sample.native_sampler import StepDraws, table_logprobs
from penstock.store.spec import ModelSpec


class NativeModel:
    """A model recorded twice: for steps that only sample, and for steps whose hidden states a request reads; there it
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
    ) -> None:
        """`max_draws`: of a step; None: one of each slot. `taps`: of `states`; None: they are not read."""
        self._model, self._spec, self._pool, self._pages = model, spec, pool, pages
        self._taps = taps
        self._layout = Layout(
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=slots.block_size,
            page_type=PAGE_TYPES[as_array(pages[0].keys).dtype],
            tokens=slots.tokens,
            tables=slots.tables,
            max_tokens=step_tokens,
            max_wanted=max_draws or len(slots.tokens),
        )
        self._sampling = self._last = self._program(wanted_only=taps != ())
        self._showing: Program | None = None  # recorded at its first use
        self._rows = array("i")  # of the last step

    def run(
        self, rows: Sequence[Row], draws: StepDraws | None, *, show: bool, kept: array[int] | None = None
    ) -> list[int]:
        """Draw the tokens of each row by `draws`, and write them to its slot; None: only compute their logits. With
        `show` the hidden states of all tokens can be read afterwards. `kept` as in `Program.run`."""
        if show and self._showing is None:
            self._showing = self._program(wanted_only=False)
        self._last = self._showing if show and self._showing is not None else self._sampling
        self._rows = array("i", [value for row in rows for value in (row.slot, row.start, row.count, row.draws)])
        if draws is None:
            return self._last.run(self._rows)
        return self._last.run(self._rows, draws=draws.table, logprobs=draws.logprobs, kept=kept)

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
        self._last.run(self._rows, wanted=wanted, logprobs=logprobs, first=self._last.recording.head)
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

    def _program(self, *, wanted_only: bool) -> Program:
        spec = self._spec
        recording = record(
            self._model,
            self._pages,
            groups=len(spec.cache_groups),
            head_dim=spec.head_dim,
            softcap=spec.logit_softcap,
            wanted_only=wanted_only,
            taps=self._taps or (),
        )
        return Program(self._pool, recording, self._layout)
