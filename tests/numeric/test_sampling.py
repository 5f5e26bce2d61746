"""The sampler against transformers' own processors, and its draws against the distribution they should follow."""

import math

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from helpers.sampling import make_filters
from penstock.flow import Admit, SamplingParams
from penstock.sample.noise_stream import noise_stream
from penstock.sample.reference import draw, noise
from penstock.sample.reference.filters import candidates
from penstock.sample.torch_sampler import TorchSampler

CPU = torch.device("cpu")
ENDS = (3, 4)


def admit(slot: int, params: SamplingParams, *, tokens: list[int], prompt_length: int, seed: int = 0) -> Admit:
    return Admit(slot, tokens, prompt_length, params, seed, 0, ENDS, [])


def processors(params: SamplingParams, prompt_length: int) -> LogitsProcessorList:
    """As GenerationMixin orders them."""
    chain = LogitsProcessorList()
    if params.logit_bias:
        chain.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias.items()}))
    if params.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.banned_tokens:
        chain.append(SuppressTokensLogitsProcessor(list(params.banned_tokens)))
    if params.min_tokens:
        chain.append(MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, list(ENDS)))
    if not params.greedy and params.temperature != 1.0:
        chain.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        chain.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chain.append(MinPLogitsWarper(params.min_p))
    if params.typical_p < 1.0:
        chain.append(TypicalLogitsWarper(params.typical_p))
    return chain


FILTERS = [
    SamplingParams(temperature=0.7, top_k=40),
    SamplingParams(top_k=1),
    SamplingParams(temperature=0.5, top_k=300),
    SamplingParams(top_k=4000),
    SamplingParams(temperature=1.3, top_k=9999),
    SamplingParams(temperature=0.6, top_p=0.9),
    SamplingParams(temperature=2.0, top_p=0.95),
    SamplingParams(top_p=0.001),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=1.5, min_p=0.0001),
    SamplingParams(temperature=0.5, typical_p=0.5),
    SamplingParams(typical_p=0.95),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    SamplingParams(temperature=0.8, top_k=200, top_p=0.99),
    SamplingParams(temperature=0.8, top_k=50, typical_p=0.6),
    SamplingParams(temperature=0.9, top_k=1000, top_p=0.97, min_p=0.005, typical_p=0.8),
    SamplingParams(temperature=0.9, top_p=0.97, min_p=0.005, typical_p=0.8),
    SamplingParams(temperature=0.9),
]


def filtered(logits: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """What the filters leave of the logits, as probabilities [rows, vocab]; by the likeliest few where they will do."""
    scores = torch.full_like(logits, -math.inf)
    filters = make_filters(params, logits.shape[1])
    for width in (logits.shape[1], draw.WIDTH):
        found = candidates(logits, filters, width)
        rows = found.covered.nonzero()
        scores[rows] = -math.inf
        scores[rows, found.tokens[rows[:, 0]]] = found.scores[rows[:, 0]]
    return scores.softmax(-1)


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_filters_keep_what_transformers_keeps(spread: float) -> None:
    """All of them in one batch; for some the likeliest few are enough, for some they are not."""
    logits = torch.randn(len(FILTERS), 10_000, generator=torch.Generator().manual_seed(1)) * spread
    covered = candidates(logits, make_filters(FILTERS, 10_000), draw.WIDTH).covered
    assert 5 <= covered.sum() <= len(FILTERS) - 5
    ours = filtered(logits, FILTERS)
    for row, params in enumerate(FILTERS):
        theirs = processors(params, 0)(torch.zeros(1, 1, dtype=torch.int64), logits[row : row + 1])[0]
        assert torch.equal(ours[row] > 0, theirs > -math.inf), params
        torch.testing.assert_close(ours[row], theirs.softmax(-1), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("vocab", [5, 128, 129, 2048])
def test_filters_on_vocabularies_at_the_edges_of_a_width(vocab: int) -> None:
    logits = torch.randn(len(FILTERS), vocab, generator=torch.Generator().manual_seed(2)) * 2
    ours = filtered(logits, FILTERS)
    for row, params in enumerate(FILTERS):
        theirs = processors(params, 0)(torch.zeros(1, 1, dtype=torch.int64), logits[row : row + 1])[0]
        assert torch.equal(ours[row] > 0, theirs > -math.inf), params


@pytest.mark.parametrize("greedy", [True, False])
def test_the_whole_chain_is_that_of_transformers(greedy: bool) -> None:
    """Same logits, same noise: the sampler draws the largest of what transformers' chain leaves plus the noise."""
    vocab, rows = 5000, 24
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, vocab, (rows, 64), generator=generator, dtype=torch.int32)
    sampler = TorchSampler(vocab, tokens)
    prompt_lengths = [5 + row for row in range(rows)]
    positions = [length + row % 7 for row, length in enumerate(prompt_lengths)]
    wanted = [
        SamplingParams(
            temperature=0.0 if greedy else 0.4 + row / 20,
            top_k=row * 10,
            top_p=1.0 - row / 50,
            min_p=0.001 * (row % 3),
            typical_p=1.0 if row % 2 else 0.9,
            repetition_penalty=1.0 + row / 10,
            logit_bias={row: 9.0, 2 * row + 1: -3.0},
            banned_tokens=(7, 8, 100 + row),
            min_tokens=row % 5,
        )
        for row in range(rows)
    ]
    logits = torch.randn(rows, vocab, generator=generator) * 3
    logits[:, ENDS[0]] += 12.0  # so that min_tokens matters
    expected = []
    for row, params in enumerate(wanted):
        known = tokens[row, : positions[row]].tolist()
        sampler.admit(admit(row, params, tokens=known, prompt_length=prompt_lengths[row], seed=row))
        greedy_params = SamplingParams(
            temperature=0.0,
            repetition_penalty=params.repetition_penalty,
            logit_bias=params.logit_bias,
            banned_tokens=params.banned_tokens,
            min_tokens=params.min_tokens,
        )
        chain = processors(greedy_params if greedy else params, prompt_lengths[row])
        scores = chain(torch.tensor([known]), logits[row : row + 1].clone())
        if not greedy:
            keys = noise.row_keys(torch.tensor([noise_stream(row, 0)]), torch.tensor([positions[row]]))
            scores = scores + noise.gumbel(keys, noise.token_hashes(vocab, CPU))
        expected.append(scores.argmax().item())
    assert sampler.sample(logits, list(range(rows)), positions).tokens.tolist() == expected


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_rejection_draws_what_sorting_would(spread: float) -> None:
    """The same tokens as the largest of what transformers keeps plus the noise, however wide top_p is."""
    vocab, rows = 3000, 200
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(8)) * spread
    params = [
        SamplingParams(temperature=0.5 + row % 5 / 4, top_p=0.05 + 0.94 * row / rows, min_p=0.01 * (row % 3))
        for row in range(rows)
    ]
    keys = noise.row_keys(torch.tensor([noise_stream(row, 0) for row in range(rows)]), torch.arange(rows))
    hashes = noise.token_hashes(vocab, CPU)
    scores = torch.cat(
        [
            processors(wanted, 0)(torch.zeros(1, 1, dtype=torch.int64), logits[row : row + 1])
            for row, wanted in enumerate(params)
        ]
    )
    expected = (scores + noise.gumbel(keys, hashes)).argmax(-1)
    assert draw.by_rejection(logits, make_filters(params, vocab), keys, hashes).tolist() == expected.tolist()


def test_presence_and_frequency_follow_openai() -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c counting output tokens only."""
    vocab = 50
    tokens = torch.tensor([[1, 2, 3, 4, 4, 5, 4, 1, 9, 9]], dtype=torch.int32)
    params = SamplingParams(temperature=0.0, presence_penalty=0.75, frequency_penalty=0.5)
    sampler = TorchSampler(vocab, tokens)
    sampler.admit(admit(0, params, tokens=tokens[0].tolist(), prompt_length=3))
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(0))
    expected = logits.clone()
    for token in set(range(vocab)):
        count = [4, 4, 5, 4, 1].count(token)  # positions 3 .. 7: the token at 8 is being drawn
        expected[0, token] -= 0.5 * count + 0.75 * (count > 0)
    sampler.sample(logits, [0], [8])
    torch.testing.assert_close(logits, expected)


DISTRIBUTIONS = {
    "temperature": SamplingParams(temperature=0.9),
    "top_k": SamplingParams(temperature=1.2, top_k=12),
    "top_p": SamplingParams(temperature=0.8, top_p=0.8),
    "wide top_p": SamplingParams(temperature=4.0, top_p=0.9),
    "all": SamplingParams(temperature=1.1, top_k=30, top_p=0.95, min_p=0.01, typical_p=0.9),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("along", ["positions", "seeds", "choices"])
def test_draws_follow_the_filtered_distribution(name: str, along: str) -> None:
    """Chi-square of 20,000 draws. The limit is five deviations of the statistic."""
    vocab, draws, slots = 200, 20_000, 500
    params = DISTRIBUTIONS[name]
    sampler = TorchSampler(vocab, torch.zeros(slots, slots, dtype=torch.int32))
    for slot in range(slots):
        seed, choice = {"positions": (slot, 0), "seeds": (slot, 0), "choices": (77, slot)}[along]
        sampler.admit(Admit(slot, [0], 1, params, seed, choice, (), []))
    row = torch.randn(1, vocab, generator=torch.Generator().manual_seed(5)) * 2
    counts = torch.zeros(vocab, dtype=torch.int64)
    for start in range(draws // slots):
        slot_list = [start] * slots if along == "positions" else list(range(slots))
        positions = list(range(slots)) if along == "positions" else [start] * slots
        drawn = sampler.sample(row.repeat(slots, 1), slot_list, positions).tokens
        counts += torch.bincount(drawn, minlength=vocab)
    probs = filtered(row, [params])[0]
    assert counts[probs == 0].sum() == 0
    _assert_follows(counts.double(), probs.double())


def _assert_follows(counts: torch.Tensor, probs: torch.Tensor) -> None:
    expected = probs * counts.sum()
    frequent = expected >= 5  # the rest is one cell
    cells = torch.cat([expected[frequent], expected[~frequent].sum()[None]]).clamp(min=1e-9)
    seen = torch.cat([counts[frequent], counts[~frequent].sum()[None]])
    used = cells >= 1
    chi_square = (((seen - cells) ** 2 / cells)[used]).sum().item()
    df = int(used.sum()) - 1
    assert chi_square < df + 5 * math.sqrt(2 * df)
