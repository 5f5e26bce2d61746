"""Draws by kernels: filters against the definitions of `penstock.sample` in double precision, the rest against the
sampler of the CPU.

Needs a CUDA device, or Triton's interpreter: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

import triton
import triton.language as tl

from helpers.sampling import make_filters
from helpers.triton_device import DEVICE, INTERPRETED, MARKS
from penstock.flow import Admit, Constraint, SamplingParams
from penstock.kernels.cuda import draw as draw_kernel
from penstock.kernels.cuda import sample as kernels
from penstock.kernels.cuda import sampling_params
from penstock.kernels.cuda.sampling_params import TOP_K, TOP_P, DrawScratch, SamplingTables
from penstock.kernels.cuda.top_k_top_p import draw_top_k_top_p
from penstock.sample.constraints import StepConstraints
from penstock.sample.cuda_sampler import CudaSampler
from penstock.sample.masks import pack_bits
from penstock.sample.noise_stream import noise_stream
from penstock.sample.reference import noise
from penstock.sample.reference.filters import candidates, scale
from penstock.sample.torch_sampler import TorchSampler

pytestmark = MARKS
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


@pytest.fixture(params=["likeliest first", "all tokens"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the likeliest few are tried first. If not, all rows with top_k or top_p seem to need more."""
    if request.param == "likeliest first":
        return
    likeliest = kernels.draw_top_k_top_p

    def left(logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor) -> None:
        likeliest(logits, rows, tables, scratch, tokens)
        own = tables.slot_params[rows[0]]
        tokens[(own[:, TOP_K.value] > 0) | (own[:, TOP_P.value].view(torch.float32) < math.inf)] = -1

    monkeypatch.setattr(kernels, "draw_top_k_top_p", left)


def admit(slot: int, params: SamplingParams, seed: int, prompt_length: int = 1) -> Admit:
    return Admit(slot, [1] * prompt_length, prompt_length, params, seed, 0, (2,), [])


def ours(logits: Tensor, params: list[SamplingParams], seeds: list[int], positions: list[int]) -> list[int]:
    """Rows and slots are in different orders."""
    rows, vocab = logits.shape
    sampler = CudaSampler(vocab, torch.zeros(rows + 1, max(positions) + 1, dtype=torch.int32, device=DEVICE))
    slots = list(range(rows, 0, -1))
    for slot, entry, seed in zip(slots, params, seeds, strict=True):
        sampler.admit(admit(slot, entry, seed))
    drawn: list[int] = sampler.sample(logits.to(DEVICE).clone(), slots, positions).tokens.tolist()
    recorded = sampler.tables.tokens.cpu()
    assert recorded[slots, positions].tolist() == drawn
    assert int((recorded != 0).sum()) == sum(token != 0 for token in drawn)
    return drawn


def key_of(seed: int, position: int) -> Tensor:
    return noise.row_keys(torch.tensor([noise_stream(seed, 0)]), torch.tensor([position]))[0]


def possible(row: Tensor, params: SamplingParams, key: Tensor) -> set[int]:
    """What may be drawn: one token, and more where rounding decides."""
    made = make_filters([params], len(row))
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
    seeds = [source.getrandbits(64) for _ in params]
    positions = list(range(1, len(params) + 1))
    drawn = ours(logits, params, seeds, positions)
    for row, entry, own, position, token in zip(logits, params, seeds, positions, drawn, strict=True):
        assert token in possible(row, entry, key_of(own, position)), entry


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
    keys = torch.stack([key_of(seed, 1) for seed in range(4000)])
    gumbel = noise.gumbel(keys, noise.token_hashes(vocab, cpu))
    shown = 0
    for params in FILTERS:
        made = make_filters([params], vocab)
        found = candidates(row[None].clone(), made, vocab)
        kept = int((found.scores[0] > -math.inf).sum())
        scores = scale(row[None], row.max()[None, None], made.temperature)
        for count in (kept, kept + 1):  # which tokens these are is in the order of `found`
            among = found.tokens[0, :count]
            winner = among[(scores + gumbel)[:, among].argmax(dim=1)]
            chosen: list[int] = (winner == among[-1]).nonzero()[:3, 0].tolist()
            if chosen:
                shown += 1
                drawn = ours(row.expand(len(chosen), -1), [params] * len(chosen), chosen, [1] * len(chosen))
                for seed, token in zip(chosen, drawn, strict=True):
                    assert token in possible(row, params, keys[seed]), params
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
    assert ours(nothing, [FILTERS[-1]] * 2, [0, 0], [1, 1]) == [0, 5]


def test_extreme_logits() -> None:
    logits = torch.randn(len(FILTERS), 9000, generator=torch.Generator().manual_seed(3))
    logits[:, 0] = 3e38
    logits[:, 1] = -3e38
    check(logits, FILTERS)
    check(logits * torch.linspace(-30, 30, 9000).exp(), FILTERS)


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    logits = torch.randn(len(FILTERS), 10_000, generator=torch.Generator().manual_seed(4)) * 2
    together = ours(logits, FILTERS, list(range(len(FILTERS))), [3] * len(FILTERS))
    for row, params in enumerate(FILTERS):
        assert ours(logits[row : row + 1], [params], [row], [3]) == [together[row]]


@pytest.mark.parametrize(("rows", "vocab"), [(1, 320), (3, 8192), (5, 8193), (17, 20_000 if INTERPRETED else 128_256)])
def test_greedy_and_plain(rows: int, vocab: int) -> None:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows)) * 4
    logits[0, : vocab // 2] = -torch.inf
    logits[-1, [7, vocab - 1]] = 100.0
    seeds, positions = list(range(rows)), [1 + 1000 * row for row in range(rows)]
    assert ours(logits, [SamplingParams(temperature=0.0)] * rows, seeds, positions) == logits.argmax(-1).tolist()
    params = [SamplingParams(temperature=0.05 + 2.0 * row / rows) for row in range(rows)]
    drawn = ours(logits, params, seeds, positions)
    for row, entry, seed, position, token in zip(logits, params, seeds, positions, drawn, strict=True):
        assert token in possible(row, entry, key_of(seed, position))


def test_values_that_are_too_near_for_rough_noise() -> None:
    """Two tokens, one of which is ahead by less than the rough noise of the other is off: its series ends too early."""
    hashes = noise.token_hashes(10_000, torch.device("cpu"))
    keys = torch.stack([key_of(seed, 1) for seed in range(4000)])
    found = noise.gumbel(keys, hashes[[5]])[:, 0]
    seeds: list[int] = ((found > 4.17) & (found < 4.3)).nonzero()[:, 0].tolist()
    assert len(seeds) > 3
    for other in (6, 5 + 1024, 9000):  # in another place, in the same one, in another part
        logits = torch.full((len(seeds), 10_000), -math.inf)
        logits[:, 5] = 1.0
        logits[:, other] = 1.0 + found[seeds] - noise.gumbel(keys[seeds], hashes[[other]])[:, 0] + 4e-5
        drawn = ours(logits, [SamplingParams()] * len(seeds), seeds, [1] * len(seeds))
        assert drawn == [other] * len(seeds)


@pytest.mark.parametrize("top_k", [0, 5, 200])
def test_the_smallest_top_p_leaves_the_likeliest(top_k: int) -> None:
    logits = torch.randn(3, 9000, generator=torch.Generator().manual_seed(1))
    logits[2] = 0.0
    drawn = ours(logits, [SamplingParams(top_p=1e-46, top_k=top_k)] * 3, [1, 2, 3], [1, 1, 1])
    assert drawn[:2] == logits[:2].argmax(dim=1).tolist()


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.5, top_k=300)])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_no_number_does_no_harm(params: SamplingParams, number: float) -> None:
    """It ends, with a token that there is, and not with one that somebody else has left behind."""
    for rest in (0.0, number):
        logits = torch.full((2, 9000), rest)
        logits[0, 7] = number
        logits[1, 20:9000] = number
        sampler = CudaSampler(9000, torch.zeros(3, 3, dtype=torch.int32, device=DEVICE))
        for left_behind in (33, 44):
            sampler.scratch.few_tokens.fill_(left_behind)
            sampler.admit(admit(1, params, 1))
            sampler.admit(admit(2, params, 2))
            drawn = sampler.sample(logits.to(DEVICE).clone(), [1, 2], [1, 1]).tokens.tolist()
            assert all(0 <= token < 9000 for token in drawn)
            if params.top_k == 5:
                assert not {33, 44} & set(drawn)


def test_a_part_with_a_logit_far_below_all_others() -> None:
    """It does not keep the likeliest from being found."""
    logits = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(6)) * 3
    logits[:, [3, 9000, 19_000]] = torch.tensor([-1e4, -1e9, -3e38])
    params = [SamplingParams(top_k=50), SamplingParams(top_k=50, top_p=0.9), SamplingParams(top_p=0.5)]
    check(logits, params)
    sampler = CudaSampler(20_000, torch.zeros(3, 3, dtype=torch.int32, device=DEVICE))
    for slot, entry in enumerate(params):
        sampler.admit(admit(slot, entry, slot))
    sampler._write_params()
    rows, tokens = (
        torch.tensor([[0, 1, 2], [0] * 3, [1] * 3, [0, 1, 2]], device=DEVICE),
        torch.zeros(3, dtype=torch.int64),
    )
    on_device, tokens = logits.to(DEVICE), tokens.to(DEVICE)
    kernels.find_part_maxima(on_device, rows, sampler.tables, sampler.scratch, mask=False)
    draw_top_k_top_p(on_device, rows, sampler.tables, sampler.scratch, tokens)
    assert int(tokens.min()) >= 0


@pytest.mark.parametrize("params", [SamplingParams(min_p=0.1), SamplingParams(min_p=0.1, top_k=9)])
def test_parts_in_which_nothing_is_kept(params: SamplingParams) -> None:
    """The first token, which comes out of a search that finds nothing, would win here if it were not filtered."""
    vocab, tokens, values = 20_000, [0, 9000, 12_000], torch.tensor([9.0, 11.5, 11.2])
    keys = torch.stack([key_of(seed, 1) for seed in range(400)])
    noisy = values + noise.gumbel(keys, noise.token_hashes(vocab, torch.device("cpu"))[tokens])
    seeds: list[int] = (noisy.argmax(dim=1) == 0).nonzero()[:, 0].tolist()
    logits = torch.full((len(seeds), vocab), -30.0)
    logits[:, tokens] = values
    drawn = ours(logits, [params] * len(seeds), seeds, [1] * len(seeds))
    assert set(drawn) == {9000, 12_000}


@triton.jit
def _noises(rough, exact, COUNT: tl.constexpr):
    index = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.store(rough + index, draw_kernel.rough_noise_of(index, tl.full([], 0, tl.int64)))
    tl.store(exact + index, draw_kernel.noise_of(index, tl.full([], 0, tl.int64)))


def test_how_rough_the_rough_noise_is() -> None:
    count = 1 << (18 if INTERPRETED else 26)
    rough, exact = torch.empty(2, count, device=DEVICE)
    _noises[(count // 8192,)](rough, exact, 8192)
    assert exact.max() > 12
    assert exact.min() < -2
    assert (rough - exact).abs().max() < draw_kernel.ROUGHLY.value / 2


KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy, penalised": SamplingParams(temperature=0.0, repetition_penalty=1.4, presence_penalty=0.5),
    "temperature": SamplingParams(temperature=0.8),
    "min_p": SamplingParams(min_p=0.1),
    "filtered": SamplingParams(temperature=0.9, top_k=50, top_p=0.95),
    "typical": SamplingParams(typical_p=0.7, frequency_penalty=-0.3),
    "repetition": SamplingParams(repetition_penalty=1.3),
    "presence": SamplingParams(presence_penalty=2.0, top_k=100),
    "frequency": SamplingParams(frequency_penalty=0.7, temperature=1.5),
    "biased": SamplingParams(logit_bias={5: 9.0, 17: -100.0, 800: 9.0, 9999: 3.0}, repetition_penalty=0.7),
    "many biases": SamplingParams(logit_bias=dict.fromkeys(range(900), 8.0)),
    "banned": SamplingParams(banned_tokens=tuple(range(880)), logit_bias={3: 50.0}, top_p=0.9),
    "allowed": SamplingParams(allowed_tokens=tuple(range(100, 130)), temperature=2.0),
    "min_tokens": SamplingParams(temperature=0.0, logit_bias={2: 100.0}, min_tokens=6),
    "constrained": SamplingParams(top_p=0.9, constraint=Constraint("regex", "[0-9]+")),
}


class Both:
    """A sampler of either kind, over the same slots: tokens that one draws the other has to draw, too."""

    def __init__(self, vocab: int, tokens: Tensor) -> None:
        self.vocab = vocab
        self.reference = TorchSampler(vocab, tokens.clone())
        self.ours = CudaSampler(vocab, tokens.to(DEVICE))

    def admit(self, request: Admit) -> None:
        self.reference.admit(request)
        self.ours.admit(request)

    def check(
        self, logits: Tensor, slots: list[int], positions: list[int], constrained: int, *, replayed: bool
    ) -> list[int]:
        first = positions[0] % 30
        allowed = pack_bits(range(first, first + 20), self.vocab)[None]
        masked = StepConstraints([slots.index(constrained)], [], allowed, {})
        expected: list[int] = self.reference.sample(logits.clone(), slots, positions, masked).tokens.tolist()
        draw = self._replay if replayed else self._launch
        drawn = draw(logits.to(DEVICE), slots, positions, masked)
        assert drawn == expected
        assert torch.equal(self.ours.tables.tokens.cpu(), self.reference._tokens)
        return expected

    def _launch(
        self, logits: Tensor, slots: list[int], positions: list[int], masked: StepConstraints | None
    ) -> list[int]:
        drawn: list[int] = self.ours.sample(logits.clone(), slots, positions, masked).tokens.tolist()
        return drawn

    def _replay(
        self, logits: Tensor, slots: list[int], positions: list[int], masked: StepConstraints | None
    ) -> list[int]:
        """With rows that only fill up, and the greedy token, which comes first, in the slots."""
        count, spare = len(slots), len(self.ours.tables.tokens) - 1
        work = torch.cat((logits, torch.randn_like(logits[:2])))
        padded = [*slots, spare, spare]
        rows = torch.tensor([padded, [0] * (count + 2), [*positions, 0, 0], padded], device=DEVICE)
        tokens = torch.zeros(count + 2, dtype=torch.int64, device=DEVICE)
        given = work, rows, self.ours.tables, self.ours.scratch, tokens
        kernels.greedy(*given)

        def replay(full: bool, masks: Sequence[int] | None) -> Tensor:
            assert masks is None
            kernels.full(*given) if full else kernels.filtered(*given, found=True)
            return tokens[:count]

        drawn: list[int] = self.ours.sample(work[:count], slots, positions, masked, replay).tokens.tolist()
        return drawn


@pytest.mark.parametrize("vocab", [900, 9000])
def test_the_sampler_of_the_cpu_draws_the_same(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of all kinds, one after the other in their slots, with prompts and outputs of some length; by kernels
    launched one by one and as graphs have them. There are fewer counters than rows with penalties."""
    monkeypatch.setattr(sampling_params, "COUNTERS", 3)
    source = torch.Generator().manual_seed(vocab)
    sequences = torch.randint(0, 900, (len(KINDS) + 4, 3000), generator=source, dtype=torch.int32)  # one to spare
    sequences[:, ::3] = torch.randint(0, 30, sequences[:, ::3].shape, generator=source, dtype=torch.int32)  # often
    both = Both(vocab, sequences)
    for prompt_length, written in ((3, 0), (2000, 900), (20, 150)):
        slots = torch.randperm(len(KINDS) + 3, generator=source)[: len(KINDS)].tolist()
        constrained = slots[list(KINDS).index("constrained")]
        for slot, params in zip(slots, KINDS.values(), strict=True):
            both.admit(admit(slot, params, seed=slot, prompt_length=prompt_length))
        for step in range(8 if written == 0 or not INTERPRETED else 1):
            logits = torch.randn(len(KINDS), vocab, generator=source) * 3
            order = torch.randperm(len(slots), generator=source).tolist()
            drawn = both.check(
                logits[order],
                [slots[row] for row in order],
                [prompt_length + written + step + 1] * len(slots),
                constrained,
                replayed=step % 2 == 1,
            )
            ended = drawn[order.index(list(KINDS).index("min_tokens"))] == 2
            assert ended == (written + step + 1 >= 6)


def test_parameters_are_written_once_a_draw_reads_them() -> None:
    """Not in steps where all draws are greedy; and then those of all slots, also of one that had another request."""
    both = Both(500, torch.zeros(4, 20, dtype=torch.int32))
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(1))

    def drawn(slots: list[int], position: int) -> None:
        expected = both.reference.sample(logits.clone(), slots, [position] * 2).tokens
        ours_ = both.ours.sample(logits.to(DEVICE).clone(), slots, [position] * 2).tokens
        assert ours_.tolist() == expected.tolist()

    both.admit(admit(0, SamplingParams(allowed_tokens=(5, 6), presence_penalty=2.0), seed=1))
    both.admit(admit(1, SamplingParams(top_k=3), seed=2))
    drawn([0, 1], 2)
    both.admit(admit(0, SamplingParams(temperature=0.0), seed=3))
    both.admit(admit(2, SamplingParams(temperature=0.0), seed=3))
    drawn([0, 2], 3)
    assert set(both.ours._unwritten) == {0, 2}
    drawn([1, 0], 4)
    assert not both.ours._unwritten


def test_log_probabilities_come_along() -> None:
    both = Both(500, torch.zeros(3, 20, dtype=torch.int32))
    both.admit(admit(0, SamplingParams(logprobs=2, top_k=5), seed=1))
    both.admit(admit(2, SamplingParams(temperature=0.0, logprobs=0, banned_tokens=(3,)), seed=2))
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    told = [
        sampler.sample(logits.to(device).clone(), [0, 2], [4, 4]).logprobs
        for sampler, device in ((both.reference, "cpu"), (both.ours, DEVICE))
    ]
    assert told[0] is not None
    assert told[1] is not None
    for one, other in zip(told[0].entries(), told[1].entries(), strict=True):
        assert (one.token, one.rank) == (other.token, other.rank)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_rows_that_only_fill_up_draw_nothing() -> None:
    sampler = CudaSampler(300, torch.zeros(4, 20, dtype=torch.int32, device=DEVICE))
    for slot, params in enumerate(
        (SamplingParams(), SamplingParams(top_k=3, presence_penalty=1.0), SamplingParams(temperature=0.0))
    ):
        sampler.admit(admit(slot, params, seed=0))
    sampler._write_params()
    logits = torch.randn(5, 300, device=DEVICE)
    rows = torch.tensor([[3, 0, 1, 3, 2], [0] * 5, [0, 7, 0, 0, 9], [3, 0, 1, 3, 2]], device=DEVICE)
    tokens = torch.zeros(5, dtype=torch.int64, device=DEVICE)
    kernels.full(logits, rows, sampler.tables, sampler.scratch, tokens)
    written = sampler.tables.tokens.cpu()
    drawn = tokens.tolist()
    assert drawn[4] == int(logits[4].argmax())
    assert (written[0, 7], written[2, 9]) == (drawn[1], drawn[4])
    written[0, 7] = written[2, 9] = 0
    assert int(written.count_nonzero()) == 0


def test_each_draft_has_its_mask() -> None:
    """A slot with two drafts draws three tokens; the mask of its first is the slot's own. Another slot draws one."""
    vocab = 900
    sampler = CudaSampler(vocab, torch.zeros(3, 20, dtype=torch.int32, device=DEVICE), 4)
    constrained = SamplingParams(temperature=0.0, constraint=Constraint("regex", "a"))
    for slot, params in ((0, SamplingParams(temperature=0.0)), (2, constrained)):
        sampler.admit(admit(slot, params, seed=0))
    allowed = [{5}, {77, 78}, {899}]
    masks = StepConstraints([0, 1, 2], [], np.stack([pack_bits(one, vocab) for one in allowed]), {})
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(0))
    drawn = sampler.sample(logits.to(DEVICE), [2, 2, 2, 0], [4, 5, 6, 9], masks).tokens.tolist()
    likelier = 77 if logits[1, 77] > logits[1, 78] else 78
    assert drawn == [5, likelier, 899, int(logits[3].argmax())]


@pytest.mark.skipif(INTERPRETED, reason="there is nothing to wait for")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_is_read_back() -> None:
    sampler = CudaSampler(20_000, torch.zeros(3, 20, dtype=torch.int32, device=DEVICE))
    sampler.admit(admit(0, SamplingParams(top_k=50, top_p=0.9, min_tokens=3, frequency_penalty=1.0), seed=1))
    sampler.admit(admit(1, SamplingParams(min_p=0.1, logit_bias={3: 1.0}), seed=1))
    logits = torch.randn(2, 20_000, device=DEVICE)
    for position in (2, 3, 7):
        if position > 2:
            torch.cuda.set_sync_debug_mode("error")
        try:
            sampler.sample(logits.clone(), [0, 1], [position] * 2)
        finally:
            torch.cuda.set_sync_debug_mode("default")
