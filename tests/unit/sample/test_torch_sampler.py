import pytest
import torch

from penstock.flow import Admit, SamplingParams
from penstock.sample.reference.draws import Draws
from penstock.sample.torch_sampler import TorchSampler

VOCAB = 700
SLOTS = 16


def make(*requests: Admit, tokens: torch.Tensor | None = None) -> TorchSampler:
    sampler = TorchSampler(VOCAB, torch.zeros(SLOTS, 64, dtype=torch.int32) if tokens is None else tokens)
    for request in requests:
        sampler.admit(request)
    return sampler


def admit(slot: int, params: SamplingParams, *, seed: int = 0, choice: int = 0, prompt_length: int = 4) -> Admit:
    return Admit(slot, [1] * prompt_length, prompt_length, params, seed, choice, (2,), [])


def some_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "filtered": SamplingParams(temperature=0.9, top_k=50, top_p=0.95),
    "wide": SamplingParams(temperature=3.0, top_p=0.999),
    "typical": SamplingParams(typical_p=0.7),
    "penalised": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.2),
    "masked": SamplingParams(logit_bias={5: 3.0}, banned_tokens=(9, 10), min_tokens=20, top_p=0.9),
    "restricted": SamplingParams(allowed_tokens=tuple(range(100, 130))),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_draw_depends_on_nothing_but_its_own_request(name: str) -> None:
    """Alone or among others of every kind, in whatever slot and row: the same tokens at every position."""
    tokens = torch.randint(0, VOCAB, (SLOTS, 64), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
    logits = some_logits(12)
    alone = make(admit(0, KINDS[name], seed=11), tokens=tokens[[7]].repeat(SLOTS, 1))
    expected = [alone.sample(logits[p : p + 1].clone(), [0], [10 + p]).tokens.item() for p in range(12)]

    others = [admit(slot, params, seed=slot) for slot, params in enumerate(KINDS.values(), start=8)]
    crowd = make(admit(7, KINDS[name], seed=11), *others, tokens=tokens)
    for p in range(12):
        slots = [request.slot for request in others]
        slots.insert(p % 9, 7)
        rows = some_logits(len(slots), seed=p + 1)
        rows[p % 9] = logits[p]
        positions = [30] * len(slots)
        positions[p % 9] = 10 + p
        assert crowd.sample(rows, slots, positions).tokens[p % 9].item() == expected[p]


def test_drawn_tokens_are_written_to_their_sequences() -> None:
    tokens = torch.zeros(SLOTS, 64, dtype=torch.int32)
    sampler = make(
        admit(3, KINDS["greedy"]), admit(0, KINDS["filtered"]), admit(9, KINDS["temperature"]), tokens=tokens
    )
    drawn = sampler.sample(some_logits(3), [3, 0, 9], [63, 5, 4]).tokens.tolist()
    assert [int(tokens[3, 63]), int(tokens[0, 5]), int(tokens[9, 4])] == drawn
    assert int(tokens.count_nonzero()) == sum(token != 0 for token in drawn)


def test_seeds_choices_and_positions_give_different_draws() -> None:
    flat = torch.zeros(1, VOCAB)
    requests = [admit(0, SamplingParams(), seed=1), admit(1, SamplingParams(), seed=2)]
    requests += [admit(2, SamplingParams(), seed=1, choice=1), admit(3, SamplingParams(), seed=1)]
    sampler = make(*requests)
    draws = [
        sampler.sample(flat.repeat(4, 1), [0, 1, 2, 3], [position] * 4).tokens.tolist() for position in range(4, 40)
    ]
    first, second, third, again = zip(*draws, strict=True)
    assert first == again
    for one, other in ((first, second), (first, third), (second, third), (first, first[1:])):
        assert sum(a == b for a, b in zip(one, other, strict=False)) <= 2


def test_greedy_takes_the_first_of_the_largest_after_masks_and_penalties() -> None:
    tokens = torch.full((SLOTS, 64), 3, dtype=torch.int32)
    sampler = make(
        admit(0, SamplingParams(temperature=0.0)),
        admit(1, SamplingParams(temperature=0.0, repetition_penalty=2.0)),
        admit(2, SamplingParams(temperature=0.0, banned_tokens=(3,))),
        tokens=tokens,
    )
    logits = torch.zeros(3, VOCAB)
    logits[:, 3], logits[:, [50, 60]] = 5.0, 4.0
    assert sampler.sample(logits, [0, 1, 2], [8, 8, 8]).tokens.tolist() == [3, 50, 50]


def test_min_tokens_holds_for_exactly_that_many() -> None:
    """The same slot, step after step: what was grouped for the last step must not be used when a ban falls away."""
    sampler = make(admit(0, SamplingParams(temperature=0.0, min_tokens=3), prompt_length=4))
    drawn = []
    for position in range(4, 9):
        logits = torch.zeros(1, VOCAB)
        logits[0, 2], logits[0, 6] = 5.0, 1.0
        drawn.append(sampler.sample(logits, [0], [position]).tokens.item())
    assert drawn == [6, 6, 6, 2, 2]


def test_a_slot_taken_over_forgets_its_last_request() -> None:
    sampler = make(admit(0, SamplingParams(temperature=0.0, banned_tokens=(5,), logprobs=2)))
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 1.0
    assert sampler.sample(logits.clone(), [0], [4]).tokens.item() != 5
    sampler.admit(admit(0, SamplingParams(temperature=0.0)))
    draws = sampler.sample(logits.clone(), [0], [4])
    assert draws.tokens.item() == 5
    assert draws.logprobs is None


def test_penalties_see_tokens_written_to_the_slot_rows_since() -> None:
    tokens = torch.ones(SLOTS, 64, dtype=torch.int32)
    sampler = make(admit(0, SamplingParams(temperature=0.0, presence_penalty=2.0)), tokens=tokens)
    drawn = []
    for position in range(4, 8):
        logits = torch.zeros(1, VOCAB)
        logits[0, 10:14] = torch.tensor([4.0, 3.5, 3.0, 2.5])
        token = sampler.sample(logits, [0], [position]).tokens
        tokens[0, position] = token
        drawn.append(token.item())
    assert drawn == [10, 11, 12, 13]


def test_logprobs_are_those_of_the_model_for_the_rows_that_ask() -> None:
    params = SamplingParams(temperature=0.5, logit_bias={4: 20.0}, logprobs=3)
    sampler = make(admit(0, params), admit(1, KINDS["filtered"]), admit(2, SamplingParams(temperature=0.0, logprobs=0)))
    logits = some_logits(3)
    model = logits.log_softmax(-1)
    draws = sampler.sample(logits, [0, 1, 2], [9, 9, 9])
    assert draws.logprob_rows == [0, 2]
    biased, greedy = _listed(draws)
    assert biased.token == 4
    assert biased.logprob == pytest.approx(model[0, 4].item(), abs=1e-6)
    assert biased.rank == 1 + int((model[0] > model[0, 4]).sum())
    best = model[0].topk(3)
    assert [token for token, _ in biased.top] == best.indices.tolist()
    assert [logprob for _, logprob in biased.top] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert (greedy.token, greedy.rank, greedy.top) == (model[2].argmax().item(), 1, [])


@pytest.mark.parametrize("name", [name for name in KINDS if name != "greedy"])
def test_broken_logits_still_give_a_token_of_the_vocabulary(name: str) -> None:
    sampler = make(admit(0, KINDS[name]), admit(1, KINDS[name]))
    logits = torch.full((2, VOCAB), float("nan"))
    logits[1] = -torch.inf
    drawn = sampler.sample(logits, [0, 1], [9, 9]).tokens
    assert ((drawn >= 0) & (drawn < VOCAB)).all()


def _listed(draws: Draws) -> list:
    assert draws.logprobs is not None
    return draws.logprobs.entries()


def test_log_probabilities_are_those_of_the_request_that_has_the_slot_now() -> None:
    sampler = make()
    for wanted in (2, 5, 0):
        sampler.admit(admit(1, SamplingParams(logprobs=wanted)))
        draws = sampler.sample(some_logits(1), [1], [4])
        assert draws.logprobs is not None
        assert [len(entry.top) for entry in draws.logprobs.entries()] == [wanted]
    sampler.admit(admit(1, SamplingParams()))
    assert sampler.sample(some_logits(1), [1], [4]).logprobs is None


def test_the_smallest_top_p_leaves_the_likeliest() -> None:
    params = SamplingParams(top_p=1e-46)
    sampler = make(admit(0, params), admit(1, params))
    logits = some_logits(2)
    logits[1] = 0.0
    assert sampler.sample(logits.clone(), [0, 1], [4, 4]).tokens[0] == logits[0].argmax()
