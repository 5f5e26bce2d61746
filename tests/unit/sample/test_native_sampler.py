"""The native sampler against the one in torch: requests of every kind, over the same logits."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

import numpy as np
import pytest
import torch

from helpers.native_paged_model import needs_library
from penstock.flow import Admit, Constraint, Inspection, SamplingParams
from penstock.sample.constraints import StepConstraints
from penstock.sample.masks import pack_bits
from penstock.sample.native_sampler import NativeSampler
from penstock.sample.reports import Reports
from penstock.sample.torch_sampler import TorchSampler

pytestmark = needs_library

SLOTS, CONTEXT, END = 12, 96, 2
WORD = Constraint.regex("[a-z]+")


def random_params(source: random.Random, vocab: int) -> SamplingParams:
    """Each parameter in a third of the requests or so."""

    def some(value: Any, neutral: Any) -> Any:
        return value if source.random() < 0.35 else neutral

    def ids(count: int) -> tuple[int, ...]:
        return tuple(source.sample(range(vocab), min(count, vocab - 2)))

    return SamplingParams(
        temperature=some(0.0, source.choice((0.3, 1.0, 1.7))),
        top_k=some(source.choice((1, 5, 60)), 0),
        top_p=some(source.uniform(0.1, 0.99), 1.0),
        min_p=some(source.uniform(0.001, 0.2), 0.0),
        typical_p=some(source.uniform(0.2, 0.95), 1.0),
        repetition_penalty=some(source.uniform(0.7, 1.6), 1.0),
        presence_penalty=some(source.uniform(-1.0, 2.0), 0.0),
        frequency_penalty=some(source.uniform(-0.5, 1.0), 0.0),
        logit_bias=some({token: source.uniform(-8.0, 8.0) for token in ids(20)}, {}),
        allowed_tokens=some(ids(30), ()),
        banned_tokens=some(ids(15), ()),
        min_tokens=some(source.randrange(1, 40), 0),
        logprobs=some(source.choice((0, 3, 20)), None),
        constraint=some(WORD, None),
    )


class Both:
    def __init__(self, vocab: int, seed: int = 0) -> None:
        self.vocab, self.source = vocab, random.Random(seed)
        tokens = np.random.default_rng(seed).integers(0, vocab, (SLOTS, CONTEXT), dtype=np.int32)
        self.tokens = tokens
        self.reference = TorchSampler(vocab, torch.from_numpy(tokens.copy()))
        self.native = NativeSampler(vocab, tokens)
        self.constrained: set[int] = set()

    def admit(self, slot: int, params: SamplingParams, inspect: int = 0) -> None:
        seed, length = self.source.getrandbits(64), self.source.randrange(1, 60)
        request = Admit(slot, [1] * length, length, params, seed, slot % 3, (END, 5), [], None, inspect)
        self.reference.admit(request)
        self.native.admit(request)
        (self.constrained.add if params.constraint is not None else self.constrained.discard)(slot)

    def constraints(self, slots: Sequence[int]) -> StepConstraints | None:
        rows = [row for row, slot in enumerate(slots) if slot in self.constrained]
        if not rows:
            return None
        kept = (self.source.sample(range(self.vocab), self.source.choice((1, 9, self.vocab - 7))) for _ in rows)
        return StepConstraints(rows, [], np.stack([pack_bits(tokens, self.vocab) for tokens in kept]), {})

    def sample(
        self, logits: np.ndarray[Any, Any], slots: list[int], positions: list[int]
    ) -> tuple[Reports, Reports | None]:
        """Both draw the same tokens; gives what each reports."""
        masked = self.constraints(slots)
        expected = self.reference.sample(torch.from_numpy(logits.copy()), slots, positions, masked)
        drawn, reports = self.native.sample(logits.copy(), slots, positions, masked)
        assert drawn == expected.tokens.tolist()
        assert self.tokens[slots, positions].tolist() == drawn
        return expected, reports


def check_logprobs(expected: Reports, reports: Reports | None) -> None:
    if expected.logprobs is None:
        assert reports is None or reports.logprobs is None
        return
    assert reports is not None
    assert reports.logprobs is not None
    assert reports.logprob_rows == expected.logprob_rows
    for theirs, ours in zip(expected.logprobs.entries(), reports.logprobs.entries(), strict=True):
        assert (ours.token, ours.rank) == (theirs.token, theirs.rank)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        found, wanted = ([one.logprob, *(logprob for _, logprob in one.top)] for one in (ours, theirs))
        assert found == pytest.approx(wanted, abs=2e-6, rel=1e-6)


@pytest.mark.parametrize(("vocab", "seed"), [(64, 1), (701, 2), (5003, 3)])
def test_any_mixture_of_requests_draws_and_reports_the_same(native: CDLL, vocab: int, seed: int) -> None:
    """Slots are taken over by other requests, step after step; `min_tokens` ends on the way."""
    both = Both(vocab, seed)
    for slot in range(SLOTS):
        both.admit(slot, random_params(both.source, vocab))
    rng = np.random.default_rng(seed)
    for step in range(12):
        slots = both.source.sample(range(SLOTS), both.source.randrange(1, SLOTS + 1))
        positions = [60 + step + slot % 3 for slot in slots]
        logits = rng.standard_normal((len(slots), vocab), dtype=np.float32) * both.source.choice((0.5, 3.0, 8.0))
        check_logprobs(*both.sample(logits, slots, positions))
        both.admit(slots[0], random_params(both.source, vocab))


def test_equal_logits_are_listed_by_token(native: CDLL) -> None:
    """Also where more tokens are equal than fit the list, and of zeros of both signs."""
    both = Both(900)
    for slot, count in enumerate((1, 7, 20)):
        both.admit(slot, SamplingParams(logprobs=count, logit_bias={3: 2.0}))
    rng = np.random.default_rng(0)
    for scale in (1.0, 4.0):
        logits = (np.round(rng.standard_normal((3, 900)) * scale) / 2).astype(np.float32)
        logits[2] = np.where(np.arange(900) % 2, 0.0, -0.0)
        expected, reports = both.sample(logits, [0, 1, 2], [61, 62, 63])
        check_logprobs(expected, reports)
        assert reports is not None
        assert reports.logprobs is not None
        assert [token for token, _ in reports.logprobs.entries()[2].top] == list(range(20))


def test_a_list_longer_than_the_vocabulary(native: CDLL) -> None:
    both = Both(8)
    both.admit(0, SamplingParams(logprobs=20))
    logits = np.array([[1.0, 3.0, 2.0, -1.0, 0.0, 5.0, -math.inf, 4.0]], dtype=np.float32)
    _, reports = both.sample(logits, [0], [61])
    assert reports is not None
    assert reports.logprobs is not None
    (entry,) = reports.logprobs.entries()
    assert [token for token, _ in entry.top] == [5, 7, 1, 2, 0, 4, 3, 6]


def test_a_row_does_not_depend_on_the_rows_beside_it(native: CDLL) -> None:
    """To the last bit."""
    vocab = 3001
    params = SamplingParams(
        temperature=0.8, top_p=0.9, repetition_penalty=1.2, logit_bias={7: 4.0}, banned_tokens=(1, 9), logprobs=20
    )
    logits = np.random.default_rng(5).standard_normal((SLOTS, vocab), dtype=np.float32) * 3
    both = Both(vocab)
    for slot in range(SLOTS):
        both.admit(slot, params if slot == 4 else random_params(both.source, vocab))
    alone, own = both.native.sample(logits[4:5].copy(), [4], [70])
    slots = list(range(SLOTS))
    together, all_of_them = both.native.sample(logits.copy(), slots, [70] * SLOTS, both.constraints(slots))
    assert together[4] == alone[0]
    assert own is not None
    assert own.logprobs is not None
    assert all_of_them is not None
    assert all_of_them.logprobs is not None
    row = all_of_them.logprob_rows.index(4)
    assert all_of_them.logprobs.entries()[row] == own.logprobs.entries()[0]


def test_what_is_reported_stays_when_the_next_step_draws(native: CDLL) -> None:
    both = Both(300)
    both.admit(0, SamplingParams(logprobs=5))
    logits = np.random.default_rng(0).standard_normal((2, 300), dtype=np.float32)
    _, first = both.native.sample(logits[:1].copy(), [0], [61])
    assert first is not None
    assert first.logprobs is not None
    before = first.logprobs.entries()
    both.native.sample(logits[1:].copy(), [0], [62])
    assert first.logprobs.entries() == before


def test_the_lab_shows_the_same_stages(native: CDLL) -> None:
    vocab, source = 701, random.Random(9)
    rng = np.random.default_rng(9)
    for _ in range(25):
        both = Both(vocab, source.randrange(1000))
        both.admit(3, random_params(source, vocab), inspect=vocab)
        logits = rng.standard_normal((1, vocab), dtype=np.float32) * 3
        assert both.native.inspects([3])
        expected, reports = both.sample(logits, [3], [61])
        assert reports is not None
        theirs, ours = (one.inspected[0].inspection(expected.tokens.item()) for one in (expected, reports))  # type: ignore[attr-defined]
        check_inspection(ours, theirs)
        assert not both.native.inspects([3]), "the first draw only"


def check_inspection(ours: Inspection, theirs: Inspection) -> None:
    assert (ours.tokens, ours.logits, ours.drawn) == (theirs.tokens, theirs.logits, theirs.drawn)
    for own, other in zip(ours.stages, theirs.stages, strict=True):
        assert (own.name, own.on, own.kept) == (other.name, other.on, other.kept)
        assert own.entropy_bits == pytest.approx(other.entropy_bits, abs=1e-4)
        assert own.probs == pytest.approx(other.probs, abs=1e-5)


@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_broken_logits_still_give_a_token_of_the_vocabulary(native: CDLL, number: float) -> None:
    both = Both(300)
    for slot in range(SLOTS):
        both.admit(slot, random_params(both.source, 300))
    slots = list(range(SLOTS))
    logits = np.full((SLOTS, 300), number, dtype=np.float32)
    drawn, _ = both.native.sample(logits, slots, [61] * SLOTS, both.constraints(slots))
    assert all(0 <= token < 300 for token in drawn)
