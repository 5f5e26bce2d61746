"""What a CUDA backend does before its memory goes, here on a CPU without any: all ranks save at the same time, and a
draft model forgets what it has computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from helpers.model_specs import small_spec
from penstock.errors import OutOfMemory
from penstock.flow.step_costs import StepCosts
from penstock.forward.cuda_backend import CudaBackend
from penstock.forward.cuda_ranks import ALONE, RankPlace, SilentRanks
from penstock.forward.device_arena import DeviceArena
from penstock.kernels.interface import Pages
from penstock.speculate.filled_blocks import FilledBlocks
from penstock.speculate.lookup import PromptLookup
from penstock.system import resources


@pytest.mark.parametrize("world", [1, 2])
def test_what_is_told_that_memory_goes(world: int) -> None:
    done: list[Any] = []
    spec = small_spec()
    keys = torch.zeros(2, 16, spec.num_kv_heads, spec.head_dim)
    memory = SimpleNamespace(
        weights=SimpleNamespace(save=lambda ranks: done.append(("save", ranks))), release=lambda: done.append("release")
    )
    place = ALONE if world == 1 else RankPlace(SilentRanks(0, world), spec.vocab_size)
    backend = CudaBackend(
        SimpleNamespace(spec=spec),  # type: ignore[arg-type]
        [Pages(keys, keys)] * spec.num_layers,
        dtype=torch.float32,
        context=64,
        max_sequences=2,
        memory=memory,  # type: ignore[arg-type]
        place=place,
    )
    copy = backend.copy_of_slots()
    backend.draft_with(
        PromptLookup(copy.tokens), copy, StepCosts({1: 1.0, 2: 1.0}), forget=lambda: done.append("forget")
    )
    assert backend.release_memory()
    assert done == [("save", world), "release", "forget"]


def test_ranks_that_save_at_the_same_time_need_the_memory_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "host_bytes", lambda: 5 << 30)
    arena = DeviceArena.__new__(DeviceArena)  # on no device
    arena._end, arena._copy = 3 << 30, None
    with pytest.raises(OutOfMemory, match=r"6\.00 GiB of the host's memory, and 5\.00 GiB are free: 1\.00 GiB are"):
        arena.save(2)


def test_blocks_whose_memory_went_are_computed_again() -> None:
    tokens = np.arange(40, dtype=np.int32)[None] % 7
    blocks = FilledBlocks(tokens, np.array([[3, 4, 5, 6]], dtype=np.int32), 8)
    blocks.admit(0)
    assert blocks.computed(0, 24) == 0
    blocks.note(0, 24)
    blocks.computed(0, 24)
    blocks.admit(0)
    assert blocks.computed(0, 24) == 24  # the same tokens in the same blocks
    blocks.forget()
    blocks.admit(0)
    assert blocks.computed(0, 24) == 0
