"""SmolLM2 with drafts and without: the same answers, token for token. `make speculation` runs the long part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from helpers import draft_heads
from helpers.draft_heads import Sizes
from helpers.native_paged_model import needs_library
from helpers.recorded_drafts import draft_freely, draft_recorded
from penstock import LLM, Constraint, SamplingParams
from penstock.flow import Completion
from penstock.store.files import ModelFiles

pytestmark = [pytest.mark.weights, needs_library]
TOPICS = (
    "the sea", "bread", "a lighthouse", "trains", "the moon", "chess", "bees", "a small town", "rivers", "winter",
    "bicycles", "the library", "a market", "clocks",
)  # fmt: skip
TEXT = (
    "The {0} story is long. Who knows {0} well says that {0} changed how they live, and those who do not know {0} "
    "say that they would like to. In the year 1900 a man wrote a book of 300 pages about {0}; it sold 1,200 copies."
)
CODE = "def count(items):\n    total = 0\n    for item in items:\n        total = total + item.{1}\n    return total\n"
TASKS = (
    "Tell me about {0}.",
    "Write a list of ten facts about {0}.",
    "Summarize this text: " + TEXT,
    "Repeat this text, and replace 1900 by 1950: " + TEXT,
    "Rewrite this function, with the name sum_up: " + CODE,
    "Answer from the text. How many pages has the book? " + TEXT,
    "Describe {0} as JSON with the fields name and size.",
    "Count from one to twenty, and name {0} behind each number.",
)
PROMPTS = [task.format(topic, topic.split()[-1]) for topic in TOPICS for task in TASKS]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "size": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["large", "small", "old", "new"]}, "maxItems": 4},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=0.8, top_p=0.9),
    "penalties": SamplingParams(
        temperature=0.8, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1, logprobs=2
    ),
    "schema": SamplingParams(temperature=0.8, constraint=Constraint.json_schema(SCHEMA)),
    "stops": SamplingParams(temperature=0.8, stop=("\n\n", "book", "return"), min_tokens=12),
}


def requests(prompts: Sequence[str], tokens: int) -> tuple[list[Any], list[SamplingParams]]:
    """Each prompt in one of the ways, in turn."""
    ways = list(WAYS.values())
    params = [
        msgspec.structs.replace(ways[number % len(ways)], max_tokens=tokens, seed=number)
        for number in range(len(prompts))
    ]
    return [[{"role": "user", "content": prompt}] for prompt in prompts], params


def open_model(**settings: Any) -> LLM:
    return LLM("smollm2", **{"context": 1024, "device": "cpu", "kv_memory": "200MB", **settings})


def outputs(results: Sequence[Completion]) -> list[Any]:
    return [(c.tokens, c.text, c.finish, c.stop, c.logprobs) for result in results for c in result.choices]


def test_some_requests_together(smollm2: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    chats, params = requests(PROMPTS[2:8], 20)
    with open_model() as llm:
        expected = llm.chat(chats, params)
    draft_freely(monkeypatch)
    with open_model(speculate="lookup") as llm:
        assert outputs(llm.chat(chats, params)) == outputs(expected)
        assert llm.stats()["speculation"]["accepted"] > 0  # short answers repeat little
        llm.check_integrity()
    draft_recorded(monkeypatch, expected, 0.8)
    with open_model(speculate="lookup") as llm:
        assert outputs(llm.chat(chats, params)) == outputs(expected)
        stats = llm.stats()["speculation"]
        assert 20 < stats["accepted"] < stats["drafted"]
        llm.check_integrity()


@pytest.mark.speculation
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_every_request(smollm2: ModelFiles, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 100 prompts: alone, in mixed batches with prefix hits, and preempted in a small cache; drafted by
    lookup, and from the answers with mistakes."""
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    params = [msgspec.structs.replace(WAYS[way], max_tokens=48, seed=number) for number in range(len(PROMPTS))]
    with open_model() as llm:
        expected = llm.chat(chats, params)
    for right in (None, 0.8):
        if right is None:
            draft_freely(monkeypatch)
        else:
            draft_recorded(monkeypatch, expected, right)
        with open_model(speculate="lookup") as llm:
            alone = [llm.chat(chat, own) for chat, own in zip(chats[::8], params[::8], strict=True)]
            together = llm.chat(chats, params)
            llm.check_integrity()
            stats = llm.stats()["speculation"]
        with open_model(speculate="lookup", context=512, kv_memory="12.5MB", prefix_caching=False) as llm:
            preempted = llm.chat(chats, params)
            assert llm.stats()["preemptions"] > 0 or way in ("schema", "stops")  # their answers are short
            llm.check_integrity()
        print(f"\n{way}, {'lookup' if right is None else f'{right:.0%} right'}: {stats}")
        assert stats["accepted"] > 300
        assert outputs(alone) == outputs(expected[::8])
        assert outputs(together) == outputs(expected)
        assert outputs(preempted) == outputs(expected)


SIZES = Sizes(hidden=576, ffn=1536, heads=9, kv_heads=3, head=64, vocab=49152)
SOME_TOKENS: dict[str, Any] = {"truncated_vocab_size": 8192, "change": {"token_map": np.arange(8192)}}


def proposer_setting(name: str, folder: Path) -> str:
    """SmolLM2 itself, which is always right, and random heads, which hardly ever are."""
    if name == "draft":
        return "draft:smollm2"
    if name == "eagle3":
        return f"eagle:{draft_heads.eagle3(folder, sizes=SIZES)}"
    make = {"eagle1": draft_heads.eagle1, "medusa": draft_heads.medusa}[name]
    without = ("embed_tokens.weight",) if name == "eagle1" else tuple(f"{head}.2.weight" for head in range(3))
    shared = {"original_lm_head": True} if name == "medusa" else {}
    return f"{name.rstrip('1')}:{make(folder, sizes=SIZES, without=without, **SOME_TOKENS, **shared)}"


@pytest.mark.speculation
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("proposer", ["draft", "eagle1", "eagle3", "medusa"])
def test_every_proposer(smollm2: ModelFiles, proposer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All prompts, in all ways in turn: alone, together with prefix hits, and preempted."""
    chats, params = requests(PROMPTS, 48)
    with open_model() as llm:
        expected = llm.chat(chats, params)
    draft_freely(monkeypatch)
    speculate = proposer_setting(proposer, tmp_path)
    with open_model(speculate=speculate) as llm:
        alone = [llm.chat(chat, own) for chat, own in zip(chats[::8], params[::8], strict=True)]
        together = llm.chat(chats, params)
        llm.check_integrity()
        stats = llm.stats()["speculation"]
    room = "28MB" if proposer == "draft" else "14MB"  # keys and values of two models take twice as much
    with open_model(speculate=speculate, context=512, kv_memory=room, prefix_caching=False) as llm:
        preempted = llm.chat(chats[::3], params[::3])
        assert llm.stats()["preemptions"] > 0
        llm.check_integrity()
    print(f"\n{proposer}: {stats}")
    assert stats["drafted"] > (1000 if proposer == "draft" else 300)
    assert proposer != "draft" or stats["accepted"] > 0.9 * stats["drafted"]  # constraints forbid some
    assert outputs(alone) == outputs(expected[::8])
    assert outputs(together) == outputs(expected)
    assert outputs(preempted) == outputs(expected[::3])
