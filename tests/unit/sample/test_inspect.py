"""What the lab shows is what the sampler does."""

import math
from typing import Any, cast

import numpy as np
import pytest
import torch

from penstock.flow import Admit, Constraint, FinishReason, Inspection, SamplingParams
from penstock.sample.constraints import StepConstraints
from penstock.sample.torch_sampler import TorchSampler

VOCAB = 700
PROMPT = 4
TOKENS = torch.randint(0, VOCAB, (4, 64), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "temperature": SamplingParams(temperature=0.7),
    "filtered": SamplingParams(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01),
    "wide": SamplingParams(temperature=3.0, top_p=0.999),
    "typical": SamplingParams(top_k=80, typical_p=0.7),
    "penalised": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.4),
    "masked": SamplingParams(logit_bias={5: 3.0}, banned_tokens=(9, 10), min_tokens=20, top_p=0.9),
}


def some_logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def inspected(params: SamplingParams, *, top: int = VOCAB, seed: int = 3, position: int = 12) -> tuple[Inspection, int]:
    """Shown and drawn."""
    sampler = TorchSampler(VOCAB, TOKENS.clone())
    sampler.admit(Admit(1, [1] * PROMPT, PROMPT, params, seed, 0, (2,), [], None, top))
    draws = sampler.sample(some_logits(), [1], [position])
    token = int(draws.tokens[0])
    return draws.inspected[0].inspection(token), token


def by_token(found: Inspection, stage: str) -> list[float]:
    (probs,) = [one.probs for one in found.stages if one.name == stage]
    return [prob for _, prob in sorted(zip(found.tokens, probs, strict=True))]


@pytest.mark.parametrize("name", PARAMS)
def test_looking_changes_nothing(name: str) -> None:
    _, token = inspected(PARAMS[name])
    plain = TorchSampler(VOCAB, TOKENS.clone())
    plain.admit(Admit(1, [1] * PROMPT, PROMPT, PARAMS[name], 3, 0, (2,), []))
    assert plain.sample(some_logits(), [1], [12]).tokens.tolist() == [token]


@pytest.mark.parametrize("name", [name for name in PARAMS if name != "greedy"])
def test_the_last_stage_is_what_is_drawn_from(name: str) -> None:
    """Over many seeds, draws come from the shown distribution: none outside it, and in its proportions."""
    found, _ = inspected(PARAMS[name])
    probs = torch.tensor(by_token(found, found.stages[-1].name))
    sampler = TorchSampler(VOCAB, TOKENS[[1]].repeat(2000, 1))
    for slot in range(2000):
        sampler.admit(Admit(slot, [1] * PROMPT, PROMPT, PARAMS[name], slot, 0, (2,), []))
    drawn = sampler.sample(some_logits().repeat(2000, 1), range(2000), [12] * 2000).tokens
    assert bool((probs[drawn] > 0).all())
    counts = torch.bincount(drawn, minlength=VOCAB)
    likely = probs.topk(3).indices
    spread = (probs[likely] * (1 - probs[likely]) * 2000).sqrt()
    assert bool(((counts[likely] - 2000 * probs[likely]).abs() <= 5 * spread + 1).all())


def test_each_stage_by_the_book() -> None:
    """Against the definitions, written down once more."""
    params = SamplingParams(temperature=0.5, top_k=40, top_p=0.8, min_p=0.05, logit_bias={3: 2.0})
    found, token = inspected(params)
    logits = some_logits()[0].double()
    assert by_token(found, "model") == pytest.approx(torch.softmax(logits, 0).tolist(), abs=1e-6)
    logits[3] += 2.0
    assert by_token(found, "logit_bias") == pytest.approx(torch.softmax(logits, 0).tolist(), abs=1e-6)
    probs = torch.softmax(logits / 0.5, 0)
    assert by_token(found, "temperature") == pytest.approx(probs.tolist(), abs=1e-6)
    probs[probs < probs.topk(40).values[-1]] = 0
    probs /= probs.sum()
    assert by_token(found, "top_k") == pytest.approx(probs.tolist(), abs=1e-6)
    ordered = probs.sort(descending=True)
    before = ordered.values.cumsum(0) - ordered.values
    probs[ordered.indices[before >= 0.8]] = 0
    probs /= probs.sum()
    assert by_token(found, "top_p") == pytest.approx(probs.tolist(), abs=1e-6)
    probs[probs < 0.05 * probs.max()] = 0
    probs /= probs.sum()
    assert by_token(found, "min_p") == pytest.approx(probs.tolist(), abs=1e-6)
    (last,) = [stage for stage in found.stages if stage.name == "min_p"]
    assert last.kept == int((probs > 0).sum())
    kept = probs[probs > 0]
    assert last.entropy_bits == pytest.approx(float(-(kept * kept.log2()).sum()), abs=1e-4)
    assert [stage.name for stage in found.stages if stage.on] == [
        "model", "logit_bias", "temperature", "top_k", "top_p", "min_p",
    ]  # fmt: skip
    assert found.drawn == token


def test_penalties_count_output_and_not_the_prompt() -> None:
    found, _ = inspected(SamplingParams(presence_penalty=1.0))
    logits = some_logits()[0].clone()
    logits[TOKENS[1, PROMPT:12].long().unique()] -= 1.0
    assert by_token(found, "penalties") == pytest.approx(torch.softmax(logits, 0).tolist(), abs=1e-6)


def test_a_constraint_acts_between_masks_and_temperature() -> None:
    allowed = (3, 40, 41, 500)
    bits = np.zeros(-(-VOCAB // 32) * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    params = SamplingParams(temperature=0.8, banned_tokens=(9,), constraint=Constraint.json_object())
    sampler = TorchSampler(VOCAB, TOKENS.clone())
    for slot in (0, 1):
        sampler.admit(Admit(slot, [1] * PROMPT, PROMPT, params, 3, 0, (2,), [], None, VOCAB))
    # Only the second row is constrained; the first has come to its end, where nothing that is drawn has a meaning.
    packed = np.stack([np.full(len(bits) // 8, 255, dtype=np.uint8), np.packbits(bits, bitorder="little")])
    masked = StepConstraints([0, 1], cast(Any, [None, None]), packed, {0: FinishReason.COMPLETE})
    draws = sampler.sample(some_logits().repeat(2, 1), [0, 1], [12, 12], masked)
    free, held = (draws.inspected[row].inspection(int(draws.tokens[row])) for row in (0, 1))
    logits = torch.full((VOCAB,), -math.inf)
    logits[list(allowed)] = some_logits()[0, list(allowed)]
    assert by_token(held, "constraint") == pytest.approx(torch.softmax(logits, 0).tolist(), abs=1e-6)
    assert [(stage.name, stage.kept) for stage in held.stages if stage.on] == [
        ("model", VOCAB), ("masks", VOCAB - 1), ("constraint", 4), ("temperature", 4),
    ]  # fmt: skip
    assert held.drawn in allowed
    assert [stage.on for stage in free.stages if stage.name == "constraint"] == [False]


def test_shows_the_likeliest_before_and_behind_and_the_drawn_one() -> None:
    params = SamplingParams(temperature=5.0, logit_bias={77: 50.0}, top_k=2)
    found, token = inspected(params, top=3)
    likeliest = some_logits()[0].topk(3).indices.tolist()
    assert {77, token, *likeliest} <= set(found.tokens)
    assert len(found.tokens) <= 6
    assert found.logits == sorted(found.logits, reverse=True)
    assert all(len(stage.probs) == len(found.tokens) for stage in found.stages)


def test_greedy_is_certain() -> None:
    found, token = inspected(SamplingParams(temperature=0.0))
    last = found.stages[-1]
    assert (last.kept, last.entropy_bits) == (1, 0.0)
    assert token == int(some_logits().argmax())
    assert math.isclose(sum(last.probs), 1.0)


def test_only_the_first_draw_of_who_asked() -> None:
    sampler = TorchSampler(VOCAB, TOKENS.clone())
    sampler.admit(Admit(0, [1], 1, SamplingParams(), 0, 0, (), []))
    sampler.admit(Admit(2, [1], 1, SamplingParams(), 0, 0, (), [], None, 5))
    first = sampler.sample(some_logits().repeat(2, 1), [0, 2], [1, 1])
    assert list(first.inspected) == [1]
    assert not sampler.sample(some_logits().repeat(2, 1), [0, 2], [2, 2]).inspected
