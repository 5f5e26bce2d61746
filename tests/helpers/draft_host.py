"""What a native proposer shares with a backend, without a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from helpers.draft_heads import HIDDEN, VOCAB, target_spec
from helpers.native_paged_model import make_native_pages
from penstock.flow import Admit, SamplingParams
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.program import Pool
from penstock.kernels.weight import Weight
from penstock.sample.native_sampler import NativeSampler
from penstock.speculate.heads.packing import Packer
from penstock.speculate.proposer import Host
from penstock.store.spec import ModelSpec

SLOTS, CONTEXT, BLOCK, STEP_TOKENS = 3, 128, 8, 64


class HostWithSlots:
    """Slots with random tokens, greedy requests, and block tables in random order."""

    def __init__(self, embedding: Array, head: Array) -> None:
        random = np.random.default_rng(31)
        self.tokens: Array = random.integers(0, VOCAB, (SLOTS, CONTEXT + 1)).astype(np.int32)
        width = CONTEXT // BLOCK + 1
        blocks = random.permutation(np.arange(1, SLOTS * width + 1)).reshape(SLOTS, width)
        sampler = NativeSampler(VOCAB, self.tokens)
        for slot in range(SLOTS):
            sampler.admit(admit(slot))
        self.host = Host(
            spec=target_spec(),
            embedding=pack(embedding),
            head=pack(head),
            context=CONTEXT,
            threads=1,
            pool=Pool(1),
            step_tokens=STEP_TOKENS,
            tokens=self.tokens,
            block_size=BLOCK,
            block_table=blocks.astype(np.int32),
            allocate_pages=lambda spec: _pages(spec, SLOTS * width + 1),
            draw_table=sampler.draw_table,
        )


def _pages(spec: ModelSpec, count: int) -> list[Any]:
    return make_native_pages(spec, count, BLOCK, "float32")


def pack(values: Array) -> Weight:
    assert values.shape[1] == HIDDEN
    return Packer(0.0, None).matrix(values)


def admit(slot: int, tokens: Sequence[int] = ()) -> Admit:
    params = SamplingParams(temperature=0.0)
    return Admit(slot, list(tokens), len(tokens), params, 0, 0, (), [])
