"""Which adapters the rows of a step have on a CUDA device, for its forward pass and for logits of its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.flow import Admit, Row
from penstock.forward.delta_tiles import Numbers, numbers_of, step_deltas
from penstock.forward.device_adapters import DeviceAdapter
from penstock.forward.slot_adapters import HeldAdapters, SlotAdapters
from penstock.kernels.cuda.low_rank import DeltaMemory, StepDeltas


class Adapters(NamedTuple):
    """The adapters of an engine whose sequences may have one."""

    held: HeldAdapters[DeviceAdapter]
    memory: DeltaMemory


class StepAdapters:
    def __init__(self, adapters: Adapters | None) -> None:
        """None: no sequence has one."""
        self._adapters = adapters
        self._slots = SlotAdapters(None if adapters is None else adapters.held)
        self.rehearses = False  # steps run as if each row had an adapter, though none is loaded
        self._hidden: Numbers | None = None  # of the hidden states of the last step; None: no row has one

    @property
    def held(self) -> HeldAdapters[DeviceAdapter] | None:
        return None if self._adapters is None else self._adapters.held

    @property
    def memory(self) -> DeltaMemory | None:
        return None if self._adapters is None else self._adapters.memory

    def admit(self, admit: Admit) -> None:
        self._slots.admit(admit)

    def begin(self, rows: Sequence[Row]) -> Numbers | None:
        """The adapters of a step's tokens; None: no row has one."""
        if self.rehearses:
            self._hidden = np.ones(sum(row.count for row in rows), dtype=np.int32)
            return self._hidden
        found = self._slots.of(rows)
        self._hidden = None if found is None else numbers_of(found, [row.count for row in rows])
        return self._hidden

    def deltas(self, wanted: Sequence[int] | None) -> StepDeltas | None:
        """For the forward pass of the step, unless it is a graph. `wanted`: the tokens whose hidden states it gives;
        None: all."""
        if self._adapters is None or self._hidden is None:
            return None
        tokens = self._hidden
        if wanted is not None:
            self._hidden = tokens[list(wanted)]
        return step_deltas(self._adapters.memory, tokens, wanted)

    def logits_deltas(self, picked: Sequence[int]) -> StepDeltas | None:
        """For the logits of these hidden states."""
        if self._adapters is None or self._hidden is None:
            return None
        return step_deltas(self._adapters.memory, self._hidden[list(picked)])

    def drop(self) -> None:
        """All of them, from the device."""
        if self._adapters is not None:
            self._adapters.held.clear()
