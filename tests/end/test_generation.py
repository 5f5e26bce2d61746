"""Greedy output through the whole engine equals transformers', however the work is cut and shared."""

import random
from functools import cached_property
from pathlib import Path

import msgspec
import pytest
import torch

from helpers import tiny_models
from penstock import LLM, Constraint, SamplingParams

PROMPT_LENGTHS = (1, 5, 40, 17, 64, 33, 90, 2)
NEW_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


def prompts(seed: int) -> list[list[int]]:
    drawn = random.Random(seed)
    return [[drawn.randrange(2, tiny_models.VOCAB) for _ in range(length)] for length in PROMPT_LENGTHS]


def expected(oracle: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


class Family:
    """A saved model, prompts, and what transformers makes of them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = tiny_models.make(name, folder)
        self.prompts = prompts(len(name))
        oracle = tiny_models.oracle(self.folder)
        self.expected = [expected(oracle, prompt) for prompt in self.prompts]

    def open(self, **settings: object) -> LLM:
        """As exact as transformers: no rounding of keys and values."""
        exact = {"device": "cpu", "kv_dtype": "float32", "threads": 1}
        return LLM(str(self.folder), context=128, block_size=8, **{**exact, **settings})

    @cached_property
    def starts(self) -> list[list[int]]:
        return [prompt[: 3 + place] for place, prompt in enumerate(self.prompts * 3) if len(prompt) > 16]

    @cached_property
    def undisturbed(self) -> tuple[list[list[int]], int]:
        """What becomes of `starts` where there is room for all, and the bytes of a KV block."""
        with self.open() as roomy:
            tokens = [result.tokens for result in roomy.generate(self.starts, GREEDY)]
            return tokens, int(roomy.facts["kv_bytes"] / roomy.facts["kv_tokens"] * 8)


# longrope has two sets of frequencies; transformers chooses by the length so far, Penstock by the context it was opened
# for, so that is a test of its own.
@pytest.fixture(scope="module", params=[name for name in tiny_models.FAMILIES if name != "phi3-longrope"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_alone_and_together(family: Family, lookahead: int) -> None:
    with family.open(lookahead=lookahead) as llm:
        alone = [llm.generate(prompt, GREEDY).tokens for prompt in family.prompts]
        together = [result.tokens for result in llm.generate(family.prompts, GREEDY)]
        llm.check_integrity()
    assert alone == family.expected
    assert together == family.expected


def test_prompts_in_chunks_beside_decoding_neighbours(family: Family) -> None:
    with family.open(step_tokens=11, max_sequences=4) as llm:
        results = llm.generate(family.prompts, GREEDY)
        llm.check_integrity()
    assert [result.tokens for result in results] == family.expected


def test_prefix_hits(family: Family) -> None:
    with family.open() as llm:
        first = llm.generate(family.prompts, GREEDY)
        again = llm.generate(family.prompts, GREEDY)
        llm.check_integrity()
    assert [result.tokens for result in first] == family.expected
    assert [result.tokens for result in again] == family.expected
    # All full blocks but the one with the last token, which must be computed to get at its logits.
    assert [result.cached_tokens for result in again] == [(length - 1) // 8 * 8 for length in PROMPT_LENGTHS]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_preempted_and_computed_again(family: Family, lookahead: int) -> None:
    """So little memory that sequences which have begun cannot all go on."""
    undisturbed, block_bytes = family.undisturbed
    settings = {"kv_memory": str(20 * block_bytes), "lookahead": lookahead, "step_tokens": 64, "max_sequences": 9}
    with family.open(prefix_caching=False, **settings) as llm:
        results = llm.generate(family.starts, GREEDY)
        assert llm.stats()["preemptions"] > 0
        llm.check_integrity()
    assert [result.tokens for result in results] == undisturbed


@pytest.mark.gpu
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(("max_sequences", "chunk_sizes"), [(4, ()), (4, (8, 24, 40)), (40, ())])
def test_on_a_gpu(
    family: Family, lookahead: int, max_sequences: int, chunk_sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With steps of 40 tokens, of which graphs take those of up to 4; the others, too, but for attention; and all."""
    chunk_graphs = pytest.importorskip("penstock.forward.chunk_graphs", reason="needs triton")
    monkeypatch.setattr(chunk_graphs, "SIZES", chunk_sizes)
    settings = {"dtype": "float32", "lookahead": lookahead, "step_tokens": 40, "max_sequences": max_sequences}
    with family.open(device="cuda", **settings) as llm:
        results = llm.generate(family.prompts, GREEDY)
        llm.check_integrity()
    assert [result.tokens for result in results] == family.expected


DRAWS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.2, top_k=40, top_p=0.9),
    SamplingParams(min_p=0.02, top_p=0.97),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.4, logprobs=2),
    SamplingParams(presence_penalty=1.0, logit_bias={7: 4.0, 9: -100.0}, top_k=30),
    SamplingParams(banned_tokens=tuple(range(100)), min_tokens=5, logprobs=0),
    SamplingParams(allowed_tokens=tuple(range(20, 60)), typical_p=0.8),
    SamplingParams(constraint=Constraint("regex", "([a-e]{2} [0-9])+"), top_p=0.9, frequency_penalty=0.1),
]


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama"], indirect=True)
@pytest.mark.parametrize("max_sequences", [4, 40])
def test_draws_on_a_gpu(family: Family, max_sequences: int) -> None:
    """As on a CPU, all kinds of them beside each other, and in steps that are graphs: each kind alone, which does not
    need all that others do."""
    params = [
        msgspec.structs.replace(one, max_tokens=NEW_TOKENS, ignore_eos=True, seed=number)
        for number, one in enumerate(DRAWS)
    ]
    starts = (family.prompts * 2)[: len(params)]
    with family.open(dtype="float32") as llm:
        expected = llm.generate(starts, params)
    with family.open(device="cuda", dtype="float32", max_sequences=max_sequences) as llm:
        together = llm.generate(starts, params)
        alone = [llm.generate(prompt, own) for prompt, own in zip(starts, params, strict=True)]
        llm.check_integrity()
    assert len(expected[-1].tokens) == NEW_TOKENS
    for results in (together, alone):
        assert [result.tokens for result in results] == [result.tokens for result in expected]
        for result, other in zip(results, expected, strict=True):
            if other.choices[0].logprobs is not None:
                pairs = zip(result.choices[0].logprobs or (), other.choices[0].logprobs, strict=True)
                assert all(one.logprob == pytest.approx(two.logprob, abs=1e-3) for one, two in pairs)


def test_the_engine_in_its_own_process(tmp_path: Path) -> None:
    family = Family("qwen3", tmp_path)
    with family.open(isolate=True) as llm:
        results = llm.generate(family.prompts, GREEDY)
        llm.check_integrity()
    assert [result.tokens for result in results] == family.expected


def test_longrope_within_its_short_context(tmp_path: Path) -> None:
    family = Family("phi3-longrope", tmp_path)
    fitting = [place for place, length in enumerate(PROMPT_LENGTHS) if length + NEW_TOKENS <= 64]
    with LLM(str(family.folder), context=64, threads=1, kv_dtype="float32") as llm:
        results = llm.generate([family.prompts[place] for place in fitting], GREEDY)
    assert [result.tokens for result in results] == [family.expected[place] for place in fitting]


def test_a_sharded_checkpoint(tmp_path: Path) -> None:
    folder = tiny_models.make("llama", tmp_path, max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    prompt = prompts(0)[3]
    with LLM(str(folder), context=128, threads=1, kv_dtype="float32") as llm:
        assert llm.generate(prompt, GREEDY).tokens == expected(tiny_models.oracle(folder), prompt)
