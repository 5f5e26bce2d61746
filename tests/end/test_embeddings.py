"""Embeddings equal transformers' last hidden states, pooled, however the work is cut, shared and asked for."""

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from helpers import tiny_models
from helpers.server_process import PATIENCE_S, Server, until
from penstock import LLM, SamplingParams
from penstock.errors import ContextOverflow, InvalidRequest, PenstockError
from penstock.flow import Embedding, Pooling

CONTEXT = 128
LENGTHS = (CONTEXT, 1, 5, 40, 17, 64, 33, 2)  # the longest leaves no room for output
POOLINGS: tuple[Pooling, ...] = ("mean", "last")
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def reference(oracle: Any, tokens: list[int], pooling: Pooling) -> torch.Tensor:
    with torch.no_grad():
        hidden = oracle.model(torch.tensor([tokens])).last_hidden_state[0]
    vector = hidden.mean(0) if pooling == "mean" else hidden[-1]
    return vector / vector.norm()


def difference(found: list[float], expected: torch.Tensor) -> float:
    return (torch.tensor(found) - expected).abs().max().item()


class Family:
    """A saved model, prompts, and what transformers makes of them."""

    def __init__(self, name: str, folder: Path) -> None:
        drawn = random.Random(len(name))
        self.folder = tiny_models.make(name, folder)
        # A sequence in a window never holds more than 5; what that leaves goes to Gemma's other group.
        self.tight_blocks = {"mistral": 14, "gemma3": 22}.get(name, 25)
        self.prompts = [[drawn.randrange(2, tiny_models.VOCAB) for _ in range(length)] for length in LENGTHS]
        oracle = tiny_models.oracle(self.folder)
        self.expected = {how: [reference(oracle, prompt, how) for prompt in self.prompts] for how in POOLINGS}

    def open(self, **settings: object) -> LLM:
        """As exact as transformers: no rounding of keys and values."""
        exact = {"device": "cpu", "kv_dtype": "float32", "threads": 1}
        return LLM(str(self.folder), context=CONTEXT, block_size=8, **{**exact, **settings})

    def check(self, results: list[Embedding], pooling: Pooling) -> None:
        assert [result.prompt_tokens for result in results] == list(LENGTHS)
        for result, expected in zip(results, self.expected[pooling], strict=True):
            assert difference(result.vector, expected) < 1e-4
            assert math.hypot(*result.vector) == pytest.approx(1.0, abs=1e-5)


# Without a window, with one on all layers, with one on most: two cache groups.
@pytest.fixture(scope="module", params=["llama", "mistral", "gemma3", "qwen3"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_alone_together_and_with_all_of_it_cached(family: Family, lookahead: int) -> None:
    with family.open(lookahead=lookahead) as llm:
        for pooling in POOLINGS:
            family.check([llm.embed(prompt, pooling=pooling) for prompt in family.prompts], pooling)
            family.check(llm.embed(family.prompts, pooling=pooling), pooling)
        assert llm.stats()["prefix_hit_tokens"] == 0
        llm.check_integrity()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_in_chunks_beside_neighbours_that_generate(family: Family, lookahead: int) -> None:
    starts = [prompt[:20] for prompt in family.prompts[3:6]]
    with family.open(step_tokens=11, max_sequences=7, lookahead=lookahead) as llm:
        undisturbed = [llm.generate(start, GREEDY).tokens for start in starts]
        for pooling in POOLINGS:
            streams = [llm.stream(start, GREEDY) for start in starts]
            begun = [next(stream).tokens for stream in streams]
            family.check(llm.embed(family.prompts, pooling=pooling), pooling)
            rest = [[token for chunk in stream for token in chunk.tokens] for stream in streams]
            assert [first + more for first, more in zip(begun, rest, strict=True)] == undisturbed
        llm.check_integrity()


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_preempted_and_computed_again(family: Family, lookahead: int, pooling: Pooling) -> None:
    """Three that generate were there first, and as they grow they need the blocks of the long one."""
    with family.open() as roomy:
        block_bytes = roomy.facts["kv_bytes"] / roomy.facts["kv_tokens"] * 8
    memory = str(int(block_bytes * family.tight_blocks))
    with family.open(step_tokens=9, max_sequences=4, lookahead=lookahead, kv_memory=memory) as llm:
        streams = [llm.stream(prompt[:3], GREEDY) for prompt in family.prompts[3:6]]
        for stream in streams:
            next(stream)
        family.check(llm.embed(family.prompts, pooling=pooling), pooling)
        assert llm.stats()["preemptions"] > 0  # there is room for the three of them, so it was not one of those
        for stream in streams:
            stream.close()
        llm.check_integrity()


def test_the_engine_in_its_own_process(tmp_path: Path) -> None:
    family = Family("phi3", tmp_path)
    with family.open(isolate=True) as llm:
        for pooling in POOLINGS:
            family.check(llm.embed(family.prompts, pooling=pooling), pooling)
        llm.check_integrity()


# --- the library's surface


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny_models.make("llama", tmp_path_factory.mktemp("surface"))
    with LLM(str(folder), context=CONTEXT, block_size=8, threads=1, device="cpu") as llm:
        yield llm


def test_one_in_one_out_and_a_list_gives_a_list(llm: LLM) -> None:
    text = "the tea"
    one = llm.embed(text)
    tokens = llm.pipeline.tokenizer.encode(text)  # type: ignore[union-attr]
    assert one.prompt_tokens == len(tokens)
    assert llm.embed(tokens) == one
    assert llm.embed([text]) == [one]
    assert llm.embed([tokens]) == [one]
    assert llm.embed([]) == []
    assert llm.embed(text, pooling="last") != one


def test_a_progress_bar_says_what_is_going_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    llm.embed(["the tea", "a note"], progress=True)
    shown = capfd.readouterr().err
    assert "embedding" in shown
    assert "2/2" in shown
    llm.embed(["the tea", "a note"])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        [],
        [tiny_models.VOCAB],
        [-1],
        [5] * (CONTEXT + 1),
        [{"role": "user", "content": "hi"}],
        [5, "six"],
        None,
    ],
)
def test_bad_input_is_refused_before_any_model_time(llm: LLM, text: Any) -> None:
    steps = llm.stats()["steps"]
    with pytest.raises(InvalidRequest, match="input 1: ") as caught:
        llm.embed([[5, 6], text])
    assert caught.value.param == "input"
    assert llm.stats()["steps"] == steps


def test_an_overlong_input_says_by_how_much(llm: LLM) -> None:
    with pytest.raises(ContextOverflow, match="has 129 tokens, but the context holds 128") as caught:
        llm.embed([5] * 129)
    assert caught.value.param == "input"


def test_an_unknown_pooling_names_the_known(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="must be mean or last, got 'max'") as caught:
        llm.embed("the tea", pooling="max")  # type: ignore[call-overload]
    assert caught.value.param == "pooling"


def test_a_step_that_fails_is_raised_and_leaves_the_engine_whole(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = llm.embed([5, 6])
    backend = llm._driver.engine.loop.backend  # type: ignore[attr-defined]

    def broken(*_: object) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(backend.slots, "apply", broken)
    with pytest.raises(PenstockError, match="on fire"):
        llm.embed([[5, 6], [7, 8]])
    monkeypatch.undo()
    assert llm.embed([5, 6]) == before


# --- over HTTP, with the real SDK

TEXTS = ["The river runs through the turbine.", "Zürich 🏔"]


@pytest.fixture(scope="module")
def oracle(tiny: Path) -> Any:
    return tiny_models.oracle(tiny)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    """As exact as transformers: keys and values are not rounded to 16 bits."""
    with Server(tiny, "--kv-memory", "100MB", "--kv-dtype", "float32") as server:
        yield server


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def tokenized(server: Server, text: str) -> list[int]:
    answer = httpx.post(f"{server.url}/tokenize", json={"prompt": text}, timeout=PATIENCE_S)
    return list(answer.json()["tokens"])


def test_the_sdk_gets_vectors_of_texts(server: Server, client: openai.OpenAI, model: str, oracle: Any) -> None:
    """It asks for base64 unless told otherwise, and decodes it: the same numbers as when they come as numbers."""
    prompts = [tokenized(server, text) for text in TEXTS]
    packed = client.embeddings.create(model=model, input=TEXTS)
    plain = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    assert [entry.embedding for entry in packed.data] == [entry.embedding for entry in plain.data]
    assert (plain.object, plain.model) == ("list", model)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens == sum(map(len, prompts))
    for place, (entry, tokens) in enumerate(zip(plain.data, prompts, strict=True)):
        assert (entry.object, entry.index) == ("embedding", place)
        assert difference(entry.embedding, reference(oracle, tokens, "mean")) < 1e-4


def test_token_ids_and_the_last_state(client: openai.OpenAI, model: str, oracle: Any) -> None:
    given = [[5, 6, 7, 8], [9] * 700]  # the second takes more than one step
    answer = client.embeddings.create(model=model, input=given, extra_body={"pooling": "last"})
    for entry, tokens in zip(answer.data, given, strict=True):
        assert difference(entry.embedding, reference(oracle, tokens, "last")) < 1e-4
    one = client.embeddings.create(model=model, input=given[0])
    assert difference(one.data[0].embedding, reference(oracle, given[0], "mean")) < 1e-4


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": ""}, "input", "invalid_request"),
        ({"input": ["a", ""]}, "input", "invalid_request"),
        ({"input": []}, "input", "invalid_request"),
        ({"input": [tiny_models.VOCAB]}, "input", "invalid_request"),
        ({"input": [5] * (tiny_models.LONG_CONTEXT + 1)}, "input", "context_length_exceeded"),
        ({"input": "a", "dimensions": 8}, "dimensions", None),
        ({"input": "a", "extra_body": {"pooling": "max"}}, "pooling", None),
        ({"input": "a", "extra_body": {"temperature": 0}}, "temperature", None),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(
    client: openai.OpenAI, model: str, fields: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=model, **fields)
    assert caught.value.param == param
    assert code is None or caught.value.code == code


def test_another_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.embeddings.create(model="text-embedding-3-small", input="a")


def test_who_hangs_up_is_not_computed_for(server: Server, model: str) -> None:
    cancelled = "penstock_requests_total{finish=cancelled}"
    before = server.metrics().get(cancelled, 0.0)
    body = {"model": model, "input": [[place] * 16_000 for place in range(2, 60)]}  # far more than two seconds of work
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.api}/embeddings", json=body, timeout=httpx.Timeout(PATIENCE_S, read=2.0))
    until(lambda: server.metrics().get(cancelled, 0.0) > before, "the end of what nobody waits for")
    until(server.idle, "the end of all of it")


def test_it_is_documented(server: Server) -> None:
    route = httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE_S).json()["paths"]["/v1/embeddings"]["post"]
    assert set(route["responses"]) >= {"200", "400", "404", "413", "429", "500", "503"}
    assert route["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/EmbeddingRequest")
    assert "/v1/embeddings" in httpx.get(f"{server.url}/docs", timeout=PATIENCE_S).text
