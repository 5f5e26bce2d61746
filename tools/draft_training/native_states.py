"""The target's hidden states as the native kernels compute them, which is what heads read when they are served."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.memory import CacheSize
from penstock.forward.native_model import NativeModel
from penstock.forward.native_pages import allocate_native_pages
from penstock.forward.slot_arrays import SlotArrays
from penstock.kernels.cpu.program import Pool
from penstock.model import PackedForm, load, open_source
from penstock.store.files import ModelFiles
from penstock.store.kv_types import KvTypes

BLOCK = 16  # tokens of a KV block
STEP_TOKENS = 512
HALVES = KvTypes("float16", "float16")


class NativeStates:
    """`taps` are layers: the residual stream before layer n, as EAGLE-3 counts them."""

    def __init__(self, files: ModelFiles, *, taps: Sequence[int], context: int, threads: int) -> None:
        spec = files.spec
        model = load(spec, open_source(files.weights, files.format), PackedForm(), context=context, threads=threads)
        self._slots = SlotArrays(1, context, BLOCK, len(spec.cache_groups))
        count = self._slots.tables[0].shape[1]
        for table in self._slots.tables:
            table[0] = np.arange(1, count + 1)
        sizes = tuple(spec.block_bytes(group, BLOCK, HALVES) for group in spec.cache_groups)
        pages = allocate_native_pages(spec, CacheSize(BLOCK, (count + 1,) * len(sizes), sizes, context), HALVES)
        self._taps = tuple(taps)
        self._model = NativeModel(
            model, spec, Pool(threads), pages, self._slots, step_tokens=STEP_TOKENS, taps=self._taps or None
        )

    def hidden_states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """For each sequence [tokens, 1 + taps, hidden]: after the final norm, and at the taps."""
        return [
            torch.cat([self._chunk(tokens, first) for first in range(0, len(tokens), STEP_TOKENS)])
            for tokens in sequences
        ]

    def _chunk(self, tokens: Sequence[int], first: int) -> Tensor:
        count = min(STEP_TOKENS, len(tokens) - first)
        self._slots.tokens[0, first : first + count] = tokens[first : first + count]
        self._model.run([Row(0, first, count, 0)], None, show=True)
        hidden = self._model.hidden(count)
        tapped = self._model.states(count).reshape(count, len(self._taps), -1).swapaxes(0, 1) if self._taps else ()
        return torch.from_numpy(np.stack([hidden, *tapped], axis=1))
