"""Speculation on a GPU, with a tiny model in float32: with drafts of every kind answers are the same as without.

Products round differently for another number of tokens; in float32 and with these vocabularies no two tokens are as
likely as that, so answers are compared token for token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from helpers import draft_heads
from helpers.draft_heads import PROPOSERS, speculate_setting
from helpers.recorded_drafts import FreeDrafts, RecordedDrafts
from helpers.tiny_requests import PARAMS, PROMPTS
from penstock import LLM, SamplingParams
from penstock.flow import Admit, Completion
from penstock.kernels.arrays import Array
from penstock.speculate.heads import chain, medusa_heads
from penstock.speculate.proposer import DraftRow, Proposal

pytestmark = pytest.mark.gpu
# Random heads are rarely right, but for tokens that biases leave no choice but these.
BIASED = SamplingParams(
    temperature=1.0, logit_bias={6: 60.0, 9: 62.0, 12: 64.0}, max_tokens=40, seed=5, ignore_eos=True
)
REQUESTS = [*PARAMS, BIASED]
TEXTS = [*PROMPTS, PROMPTS[3]]


def open_model(folder: Path, **settings: Any) -> LLM:
    given = {"context": 128, "device": "cuda", "dtype": "float32", "block_size": 16, "kv_memory": "200MB"}
    return LLM(str(folder), **{**given, **settings})


def tokens(results: list[Completion]) -> list[Any]:
    return [[(choice.tokens, choice.text, choice.finish) for choice in result.choices] for result in results]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with an MTP layer of its own."""
    return draft_heads.with_mtp(tmp_path_factory.mktemp("mimo"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Completion]:
    with open_model(folder) as llm:
        return llm.generate(TEXTS, REQUESTS, progress=False)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts cost next to nothing, so there are many."""
    monkeypatch.setattr("penstock.forward.cuda_speculation.step_costs", lambda *_, **__: FreeDrafts())


def draft_recorded(monkeypatch: pytest.MonkeyPatch, results: list[Completion], right: float) -> None:
    answers = [result.prompt_tokens + choice.tokens for result in results for choice in result.choices]
    monkeypatch.setattr(
        "penstock.forward.cuda_speculation.PromptLookup",
        lambda tokens: RecordedDrafts(tokens, answers, Random(3), right),
    )


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("settings", [{}, {"max_sequences": 8, "step_tokens": 23}, {"max_sequences": 1}])
@pytest.mark.parametrize("right", [0.7, 1.0])
def test_recorded_drafts(
    folder: Path,
    expected: list[Completion],
    right: float,
    settings: dict[str, int],
    lookahead: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together, in chunks, and alone with prefix hits."""
    draft_recorded(monkeypatch, expected, right)
    with open_model(folder, speculate="lookup", speculate_audit=0.3, lookahead=lookahead, **settings) as llm:
        together = llm.generate(TEXTS, REQUESTS, progress=False)
        alone = [llm.generate(text, params, progress=False) for text, params in zip(TEXTS, REQUESTS, strict=True)]
        llm.check_integrity()
        stats = llm.stats()["speculation"]
    assert tokens(together) == tokens(expected)
    assert tokens(alone) == tokens(expected)
    assert stats["accepted"] > 300
    assert stats["audited"] > 50
    assert stats["mismatches"] == 0


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_heads_and_draft_models(folder: Path, expected: list[Completion], proposer: str, tmp_path: Path) -> None:
    """Together, alone with prefix hits, and preempted."""
    speculate = speculate_setting(proposer, tmp_path)
    with open_model(folder, speculate=speculate, speculate_audit=0.2) as llm:
        together = llm.generate(TEXTS, REQUESTS, progress=False)
        alone = [llm.generate(text, params, progress=False) for text, params in zip(TEXTS, REQUESTS, strict=True)]
        llm.check_integrity()
        stats = llm.stats()["speculation"]
        blocks = llm.facts["kv_bytes"] / llm.facts["kv_tokens"] * 16
    most = 10 if proposer == "medusa" else 14  # which keeps no keys and values
    room = {"step_tokens": 23, "max_sequences": 12, "kv_memory": str(int(blocks * most))}
    with open_model(folder, speculate=speculate, **room) as llm:
        preempted = llm.generate(TEXTS, REQUESTS, progress=False)
        llm.check_integrity()
        assert llm.stats()["preemptions"] > 0
    assert tokens(together) == tokens(expected)
    assert tokens(alone) == tokens(expected)
    assert tokens(preempted) == tokens(expected)
    assert 20 < stats["accepted"] < stats["drafted"]
    assert stats["mismatches"] == 0


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("room", ["200MB", "1MB"])
def test_a_model_that_drafts_for_itself_is_always_right(folder: Path, room: str) -> None:
    """So its keys and values are those of the target's tokens: behind prompts in chunks, prefix hits, preemptions and
    requests without drafts; and it draws with the request's noise, biases and penalties."""
    free = [params for params in REQUESTS if params.constraint is None and not params.stop and not params.stop_tokens]
    free = [params for params in free if params.typical_p == 1.0]  # drafts are drawn without
    params = [msgspec.structs.replace(one, max_tokens=24, ignore_eos=True, n=1) for one in free]
    texts = [[3 + (5 * place + index * index) % 200 for index in range(70)] for place in range(len(params))]
    with open_model(folder, speculate=f"draft:{folder}", step_tokens=40, kv_memory=room) as llm:
        plain = [msgspec.structs.replace(one, speculation=False) for one in params]
        llm.generate(texts[:3], plain[:3], progress=False)  # blocks that the draft model has not computed
        for _ in range(2):  # the second time from the prefix cache
            before = llm.stats()["speculation"]
            llm.generate(texts, params, progress=False)
            after = llm.stats()["speculation"]
            drafted, accepted = (after[name] - before[name] for name in ("drafted", "accepted"))
            assert drafted == accepted > 10 * len(params)
        llm.check_integrity()


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("settings", [{}, {"max_sequences": 8, "step_tokens": 23}])
@pytest.mark.parametrize("proposer", ["eagle1", "eagle3", "mtp", "medusa"])
def test_drafts_are_those_of_the_reference(
    folder: Path, proposer: str, settings: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of greedy requests, beside others: what the head in numpy drafts from the states that the steps had. Requests
    stop getting drafts and begin again."""
    from penstock.forward import cuda_chain, cuda_medusa, cuda_proposer, cuda_speculation
    from penstock.forward.cuda_proposer import FollowedStep

    class Witness(cuda_proposer.HeadDrafts):
        reference: ClassVar[Any] = None
        compared: ClassVar[int] = 0
        wrong: ClassVar[list[Any]] = []

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.states: dict[int, dict[int, Array]] = {}
            self.number = 0

        def admit(self, admit: Admit) -> None:
            super().admit(admit)
            self.states[admit.slot] = {}

        def follow_step(self, step: FollowedStep) -> None:
            ends = accumulate(row.count for row in step.rows) if self.reads_all else iter(step.starts[1:])
            states = step.states.float().cpu().numpy().copy()
            for row, end in zip(step.rows, ends, strict=True):
                for back in range(1, (row.count if self.reads_all else row.draws) + 1):
                    self.states.setdefault(row.slot, {})[row.start + row.count - back] = states[end - back]
            super().follow_step(step)

        def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
            self.number += 1
            if self.number % 7 == 3:  # none, this time
                return [Proposal([]) for _ in rows]
            found = super().propose(rows)
            for row, proposal in zip(rows, found, strict=True):
                if self._host.sampler.argmax_only([row.slot]):
                    known = self._host.slots.tokens[row.slot, : row.length].cpu().numpy()
                    wanted = self.drafts(known, self.states[row.slot], row)[: len(proposal.tokens)]
                    Witness.compared += len(wanted)
                    if proposal.tokens != wanted:
                        self.wrong.append((row, proposal.tokens, wanted))
            return found

        def drafts(self, known: Array, states: dict[int, Array], row: DraftRow) -> list[int]:
            if isinstance(self.reference, medusa_heads.MedusaHeads):
                return self.reference.draft(states[row.length - 2], row.most)
            sequence = chain.HeadSequence(self.reference.spec)
            self.reference.extend(sequence, known[1:], np.stack([states[place] for place in range(row.length - 1)]))
            drafts: list[int] = self.reference.draft(sequence, row.most)
            return drafts

    class Chain(cuda_chain.ChainHead):
        def __init__(self, spec: Any, weights: Any, target: Any, context: int, *rest: Any) -> None:
            super().__init__(spec, weights, target, context, *rest)
            matrices = (one.dense.cpu().numpy() for one in (target.embedding, target.head))
            Witness.reference = chain.ChainHead(spec, weights, *matrices, context)

    class Medusa(cuda_medusa.MedusaNetwork):
        def __init__(self, spec: Any, weights: Any, target: Any, *rest: Any) -> None:
            super().__init__(spec, weights, target, *rest)
            Witness.reference = medusa_heads.MedusaHeads(spec, weights, target.head.dense.cpu().numpy())

    for name, made in (("HeadDrafts", Witness), ("ChainHead", Chain), ("MedusaNetwork", Medusa)):
        monkeypatch.setattr(cuda_speculation, name, made)
    greedy = [SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)] * 3
    with open_model(folder, speculate=speculate_setting(proposer, tmp_path), prefix_caching=False, **settings) as llm:
        llm.generate([*TEXTS[:6], *TEXTS[2:5]], [*REQUESTS[:6], *greedy], progress=False)
        llm.check_integrity()
    assert Witness.wrong == []
    assert Witness.compared > 60
