"""The native draw against `penstock.sample.reference`, which defines it."""

from __future__ import annotations

import math
import random
from ctypes import CDLL

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.native_paged_model import needs_library
from helpers.sampling import draw_params, make_filters
from penstock.flow import SamplingParams
from penstock.kernels import sampling_layout
from penstock.kernels.cpu import draw as kernel
from penstock.kernels.cpu.draw_table import DrawTable, SlotTables
from penstock.kernels.sampling_layout import FILTERS as FILTER_FIELDS
from penstock.sample.masks import mask_bytes
from penstock.sample.noise_stream import noise_stream
from penstock.sample.reference import draw, noise

CPU = torch.device("cpu")
pytestmark = needs_library


def reference(logits: Tensor, params: list[SamplingParams], streams: list[int], positions: list[int]) -> list[int]:
    vocab = logits.shape[1]
    keys = noise.row_keys(torch.tensor(streams), torch.tensor(positions))
    hashes = noise.token_hashes(vocab, CPU)
    made = make_filters(params, vocab)
    if any(sampling_layout.enabled(FILTER_FIELDS, draw_params(entry, vocab)) for entry in params):
        return draw.filtered(logits.clone(), made, keys, hashes).tolist()
    return draw.plain(logits.clone(), made.temperature, keys, hashes).tolist()


def draws(rows: list[dict[str, float]], vocab: int) -> DrawTable:
    allowed = np.zeros((1, mask_bytes(vocab)), dtype=np.uint8)
    return DrawTable(rows, SlotTables.blank(np.zeros((1, 1), dtype=np.int32), 1, allowed))


def ours(logits: Tensor, params: list[SamplingParams], streams: list[int], positions: list[int]) -> list[int]:
    vocab = logits.shape[1]
    rows = [
        draw_params(entry, vocab, stream=stream, position=position)
        for entry, stream, position in zip(params, streams, positions, strict=True)
    ]
    return kernel.draw(logits.numpy(), draws(rows, vocab))


def check(logits: Tensor, params: SamplingParams, seed: int = 0) -> None:
    source = random.Random(seed)
    streams = [noise_stream(source.getrandbits(64), choice) for choice in range(len(logits))]
    positions = [source.randrange(10_000) for _ in streams]
    rows = [params] * len(logits)
    assert ours(logits, rows, streams, positions) == reference(logits, rows, streams, positions)


FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=5.0),
    SamplingParams(top_k=1),
    SamplingParams(top_k=40),
    SamplingParams(top_k=400, temperature=3.0),
    SamplingParams(top_p=0.9),
    SamplingParams(top_p=0.999, temperature=2.0),
    SamplingParams(top_p=0.01),
    SamplingParams(min_p=0.05),
    SamplingParams(min_p=1e-9),
    SamplingParams(typical_p=0.9),
    SamplingParams(typical_p=0.2, temperature=2.0),
    SamplingParams(top_k=50, top_p=0.8, min_p=0.02, temperature=0.8),
    SamplingParams(top_k=100, top_p=0.95, min_p=0.001, typical_p=0.7, temperature=1.5),
]


@pytest.mark.parametrize("params", FILTERS, ids=str)
@pytest.mark.parametrize(("vocab", "spread"), [(50, 1.0), (5000, 3.0), (5001, 0.1)])
def test_same_tokens_as_the_reference(native: CDLL, params: SamplingParams, vocab: int, spread: float) -> None:
    logits = torch.randn(24, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    check(logits, params)


def test_ties_and_bans(native: CDLL) -> None:
    logits = torch.zeros(32, 700)
    logits[:, 10], logits[:, 20:240], logits[:, 300:] = 5.0, 2.0, -math.inf
    for params in FILTERS:
        check(logits, params)


def test_extreme_logits_and_temperatures(native: CDLL) -> None:
    logits = torch.randn(16, 333, generator=torch.Generator().manual_seed(0))
    for scale in (1e-30, 1e4, 1e30):
        for temperature in (1e-10, 1.0, 2.0):
            check(logits * scale, SamplingParams(temperature=temperature))
            check(logits * scale, SamplingParams(temperature=temperature, top_k=7, top_p=0.9))


def test_a_row_of_nothing_but_bans_gives_some_token(native: CDLL) -> None:
    logits = torch.full((1, 100), -math.inf)
    assert 0 <= ours(logits, [SamplingParams(top_p=0.5)], [1], [1])[0] < 100


def test_the_largest_is_the_first_of_equals(native: CDLL) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0] * 10, [-math.inf] * 39 + [-1e30]])
    rows = [draw_params(SamplingParams(temperature=0.0), 40)] * 2
    assert kernel.draw(logits.numpy(), draws(rows, 40)) == [1, 39]
