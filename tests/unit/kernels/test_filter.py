"""The filtered draw in one kernel, against the definitions of `penstock.sample` in double precision.

Needs a CUDA device, or Triton's interpreter: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton comes with CUDA builds of torch")

import triton.language as tl
from triton import knobs

from penstock.flow import SamplingParams
from penstock.kernels.cuda import draw as draw_kernel
from penstock.kernels.cuda import filter as kernel
from penstock.kernels.cuda import launch
from penstock.sample import draw, noise
from penstock.sample.filters import Filters, candidates, scale

INTERPRETED = knobs.runtime.interpret
if INTERPRETED:  # which knows nothing of CUDA's library
    draw_kernel.libdevice = SimpleNamespace(log=lambda x: tl.log(x))
    launch.overlaps = lambda: False
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning")] if INTERPRETED else [pytest.mark.gpu]
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
NEAR = 1e-5  # of the whole mass, or of a noisy score: nearer than that rounding may decide

FILTERS = [
    SamplingParams(top_k=1),
    SamplingParams(top_k=40),
    SamplingParams(top_k=400, temperature=3.0),
    SamplingParams(top_k=9000, temperature=3.0),
    SamplingParams(top_p=0.9),
    SamplingParams(top_p=0.999, temperature=2.0),
    SamplingParams(top_p=0.01),
    SamplingParams(top_p=1e-9),
    SamplingParams(min_p=0.05),
    SamplingParams(min_p=1e-9, temperature=5.0),
    SamplingParams(top_k=50, top_p=0.8),
    SamplingParams(top_k=12000, top_p=0.99, temperature=4.0),
    SamplingParams(top_k=50, top_p=0.95, min_p=0.02, temperature=0.7),
    SamplingParams(top_p=0.95, temperature=1e-30),
    SamplingParams(top_k=20, temperature=1e-38),
    SamplingParams(top_k=20, top_p=0.5, temperature=50.0),
]


def ours(logits: Tensor, params: list[SamplingParams], keys: Tensor) -> list[int]:
    vocab = logits.shape[1]
    made = Filters.of(params, vocab, DEVICE)
    drawn: list[int] = kernel.filtered(
        logits.to(DEVICE).clone(),
        made.temperature,
        made.top_k,
        made.top_p,
        made.log_min_p,
        keys.to(DEVICE),
        noise.token_hashes(vocab, DEVICE),
    ).tolist()
    return drawn


def possible(row: Tensor, params: SamplingParams, key: Tensor) -> set[int]:
    """What may be drawn: one token, and more where rounding decides."""
    made = Filters.of([params], len(row), torch.device("cpu"))
    scores = scale(row[None], row.max()[None, None], made.temperature)[0]
    values = scores.double() + noise.gumbel(key[None], noise.token_hashes(len(row), torch.device("cpu")))[0].double()
    order = scores.argsort(descending=True, stable=True)
    falling = scores[order]
    if 0 < params.top_k < len(row):
        falling = falling[falling >= falling[params.top_k - 1]]
    falling = falling[falling > -math.inf]
    mass = falling.double().exp()
    above = (mass.cumsum(0) - mass) / mass.sum()
    starts = torch.searchsorted(-falling, -falling)  # the first of equal scores
    above = above[starts]
    tokens: set[int] = set()
    for p in (params.top_p - NEAR, params.top_p + NEAR) if params.top_p < 1.0 else (math.inf,):
        kept = falling[(above < max(p, 1e-300)) & (falling >= made.log_min_p[0, 0])]
        best = values.masked_fill(scores < kept.min(), -math.inf)
        tokens |= set((best >= best.max() - NEAR).nonzero()[:, 0].tolist())
    return tokens


def check(logits: Tensor, params: list[SamplingParams], seed: int = 0) -> None:
    source = random.Random(seed)
    streams = torch.tensor([noise.stream(source.getrandbits(64), choice) for choice in range(len(logits))])
    keys = noise.row_keys(streams, torch.arange(len(logits)))
    drawn = ours(logits, params, keys)
    for row, entry, key, token in zip(logits, params, keys, drawn, strict=True):
        assert token in possible(row, entry, key), entry


VOCABS = [50, 8192, 20_000] if INTERPRETED else [50, 8192, 8193, 20_000, 128_256, 151_936]


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("spread", [0.1, 2.0, 8.0])
def test_random_logits(vocab: int, spread: float) -> None:
    logits = torch.randn(len(FILTERS), vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    check(logits, FILTERS)


def test_the_last_that_is_kept_and_the_first_that_is_not() -> None:
    """Random draws seldom show whether these two are in: here the noise is chosen such that they would win."""
    cpu, vocab = torch.device("cpu"), 300
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(5))
    keys = noise.row_keys(torch.arange(4000), torch.arange(4000))
    gumbel = noise.gumbel(keys, noise.token_hashes(vocab, cpu))
    shown = 0
    for params in FILTERS:
        made = Filters.of([params], vocab, cpu)
        found = candidates(row[None].clone(), made, vocab)
        kept = int((found.scores[0] > -math.inf).sum())
        scores = scale(row[None], row.max()[None, None], made.temperature)
        for count in (kept, kept + 1):  # which tokens these are is in the order of `found`
            among = found.tokens[0, :count]
            winner = among[(scores + gumbel)[:, among].argmax(dim=1)]
            chosen = keys[winner == among[-1]][:3]
            if len(chosen):
                shown += 1
                drawn = ours(row.expand(len(chosen), -1), [params] * len(chosen), chosen)
                for key, token in zip(chosen, drawn, strict=True):
                    assert token in possible(row, params, key), params
    assert shown > len(FILTERS)


@pytest.mark.parametrize("vocab", [300, 20_000])
def test_ties_stay_or_go_together(vocab: int) -> None:
    logits = torch.zeros(len(FILTERS), vocab)
    logits[:, 10] = 5.0
    logits[:, 20:240] = 2.0
    for seed in range(3):
        check(logits, FILTERS, seed)
    check(torch.zeros(len(FILTERS), vocab), FILTERS)
    rounded = torch.randn(len(FILTERS), vocab, generator=torch.Generator().manual_seed(1)).mul(2).round()
    check(rounded, FILTERS)


def test_banned_tokens() -> None:
    logits = torch.full((len(FILTERS), 20_000), -math.inf)
    logits[:, [7, 9, 4000, 19_999]] = torch.tensor([1.0, 2.0, 3.0, 2.5])
    check(logits, FILTERS)
    logits[:, 9000:18_000] = torch.randn(len(FILTERS), 9000, generator=torch.Generator().manual_seed(2))
    check(logits, FILTERS)
    nothing = torch.full((2, 300), -math.inf)
    nothing[1, 5] = 0.0
    assert ours(nothing, [FILTERS[-1]] * 2, torch.zeros(2, dtype=torch.int64))[1] == 5


def test_extreme_logits() -> None:
    logits = torch.randn(len(FILTERS), 9000, generator=torch.Generator().manual_seed(3))
    logits[:, 0] = 3e38
    logits[:, 1] = -3e38
    check(logits, FILTERS)
    check(logits * torch.linspace(-30, 30, 9000).exp(), FILTERS)


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    logits = torch.randn(len(FILTERS), 10_000, generator=torch.Generator().manual_seed(4)) * 2
    keys = noise.row_keys(torch.arange(len(FILTERS)), torch.arange(len(FILTERS)))
    together = ours(logits, FILTERS, keys)
    for row, params in enumerate(FILTERS):
        assert ours(logits[row : row + 1], [params], keys[row : row + 1]) == [together[row]]


@pytest.mark.skipif(INTERPRETED, reason="the sampler takes it on a CUDA device")
def test_the_sampler_takes_it_and_nothing_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    params = [SamplingParams(top_k=50, top_p=0.9), SamplingParams(min_p=0.1)]
    logits = torch.randn(2, 20_000, device=DEVICE)
    made, hashes = Filters.of(params, 20_000, DEVICE), noise.token_hashes(20_000, DEVICE)
    keys = torch.tensor([1, 2], device=DEVICE)
    draw.filtered(logits, made, keys, hashes)
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = draw.filtered(logits, made, keys, hashes)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for row, entry, key, token in zip(logits.cpu(), params, keys.cpu(), drawn.tolist(), strict=True):
        assert token in possible(row, entry, key)
