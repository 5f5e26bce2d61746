"""Two, three and four ranks in processes of their own, over gloo: every architecture, real weights, failures. Minutes:
`make parallel` runs it."""

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from helpers import quantized_checkpoints, tiny_gguf, tiny_models
from helpers.rank_processes import all_gone, other_ranks
from helpers.server_process import Server, until
from penstock import LLM, Constraint, SamplingParams, settings
from penstock.engine.process import ProcessEngine
from penstock.errors import EngineDied, InvalidSetting
from penstock.flow import Query
from penstock.store.files import ModelFiles
from penstock.store.kv_types import kv_types
from penstock.store.resolve import resolve
from penstock.store.tensor_parallel import rank_spec

pytestmark = pytest.mark.parallel

NEW_TOKENS = 24
CONTEXT, BLOCK_SIZE, STEP_TOKENS = 128, 8, 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=tiny_models.ENDLESS_TOKENS, ignore_eos=True)
LENGTHS = (1, 5, 40, 17, 64, 33, 90, 2)
TOLERANCE = 1e-4


def prompts() -> list[list[int]]:
    drawn = random.Random(0)
    return [[drawn.randrange(2, tiny_models.VOCAB) for _ in range(length)] for length in LENGTHS]


def open_llm(model: object, **options: Any) -> LLM:
    return LLM(str(model), **{"device": "cpu", "context": CONTEXT, "block_size": BLOCK_SIZE, "threads": 2} | options)


def crowded_bytes(folder: Path, world: int) -> int:
    """Of a rank's KV cache that holds one sequence of the whole context and a little more: others are preempted."""
    spec = rank_spec(resolve(str(folder)).spec, world)
    return sum(
        (group.most_blocks(CONTEXT, STEP_TOKENS, BLOCK_SIZE) + 4)
        * spec.block_bytes(group, BLOCK_SIZE, kv_types("float32"))
        for group in spec.cache_groups
    )


def log_probabilities(llm: LLM, prompt: list[int]) -> list[float]:
    """Of the prompt's tokens from the second on."""
    found = llm.generate(prompt, msgspec.structs.replace(GREEDY, prompt_logprobs=0, max_tokens=1)).prompt_logprobs
    assert found is not None
    return [one.logprob for one in found[1:] if one is not None]


@pytest.fixture(scope="module", params=[name for name in tiny_models.FAMILIES if name != "phi3-longrope"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("world", [2, 4])
def test_as_transformers(folder: Path, world: int) -> None:
    """Log-probabilities of a prompt, and greedy answers alone, together, in chunks and after preemption."""
    oracle = tiny_models.oracle(folder)
    expected = [_greedy(oracle, prompt) for prompt in prompts()]
    options = {"max_sequences": 8, "step_tokens": STEP_TOKENS, "kv_memory": str(crowded_bytes(folder, world))}
    with open_llm(folder, tensor_parallel=world, **options) as llm:
        with torch.inference_mode():
            scores = oracle(torch.tensor([prompts()[6]])).logits[0].log_softmax(-1)
        theirs = [scores[place, token].item() for place, token in enumerate(prompts()[6][1:])]
        assert np.abs(np.array(log_probabilities(llm, prompts()[6])) - theirs).max() < TOLERANCE
        assert [result.tokens for result in llm.generate(prompts(), GREEDY)] == expected
        assert [llm.generate(prompt, GREEDY).tokens for prompt in prompts()[:3]] == expected[:3]
        assert llm.stats()["preemptions"] > 0
        llm.check_integrity()


@pytest.mark.parametrize("world", [2, 4])
def test_longrope_within_its_short_context(world: int, tmp_path: Path) -> None:
    folder = tiny_models.make("phi3-longrope", tmp_path)
    oracle = tiny_models.oracle(folder)
    fitting = [prompt for prompt in prompts() if len(prompt) + NEW_TOKENS <= 64]
    with open_llm(folder, tensor_parallel=world, context=64) as llm:
        results = llm.generate(fitting, GREEDY)
        llm.check_integrity()
    assert [result.tokens for result in results] == [_greedy(oracle, prompt) for prompt in fitting]


def _greedy(oracle: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "options",
    [{"lookahead": 1}, {"speculate": "lookup", "speculate_audit": 1.0}, {"load_format": "dummy"}],
    ids=["lookahead", "speculate", "dummy"],
)
def test_as_one_rank(options: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_models.make("qwen3", tmp_path)
    repeated = [(prompt * 8)[:60] for prompt in prompts()]
    found = []
    for world in (1, 2):
        with open_llm(folder, dtype="float32", tensor_parallel=world, isolate=True, **options) as llm:
            found.append([result.tokens for result in llm.generate(repeated, GREEDY)])
            llm.check_integrity()
    assert found[0] == found[1]


def test_16_bits(tmp_path: Path) -> None:
    """Log-probabilities as near to float32's as those of one rank."""
    folder, distances = tiny_models.make("llama3", tmp_path), []
    with open_llm(folder, dtype="float32", isolate=True) as llm:
        exact = np.array(log_probabilities(llm, prompts()[6]))
    for world in (1, 2):
        with open_llm(folder, dtype="bfloat16", tensor_parallel=world, isolate=True) as llm:
            distances.append(np.abs(np.array(log_probabilities(llm, prompts()[6])) - exact).mean())
    assert distances[1] < 1.5 * distances[0]


@pytest.mark.parametrize("kind", ["gguf", "awq", "gptq", "fp8"])
def test_quantized_weights(kind: str, tmp_path: Path) -> None:
    floats = tiny_models.make("qwen2", tmp_path / "floats", num_hidden_layers=1, intermediate_size=128)
    if kind == "gguf":
        model = tiny_gguf.convert(floats, tmp_path / "tiny.gguf", GGMLQuantizationType.Q8_0)
    else:
        model, _ = quantized_checkpoints.write(floats, tmp_path / kind, kind)
    found = []
    for world in (1, 4):
        with open_llm(model, dtype="float32", tensor_parallel=world, isolate=True) as llm:
            found.append(np.array(log_probabilities(llm, prompts()[6])))
    assert np.abs(found[0] - found[1]).max() < TOLERANCE


@pytest.fixture(scope="module")
def both(smollm2: ModelFiles) -> Iterator[tuple[LLM, LLM]]:
    """SmolLM2 on one rank and on three: it has 9 heads and 3 KV heads."""
    options = {"dtype": "float32", "context": 1024, "isolate": True}
    with open_llm("smollm2", **options) as alone, open_llm("smollm2", **options, tensor_parallel=3) as split:
        yield alone, split


@pytest.mark.weights
def test_smollm2_answers(both: tuple[LLM, LLM]) -> None:
    alone, split = both
    questions = ["What is the capital of France?", "Why is the sky blue?", "Write a haiku about the sea."]
    params = SamplingParams(temperature=0.0, max_tokens=32)
    conversations = [[{"role": "user", "content": question}] for question in questions]
    expected = [llm_answer.tokens for llm_answer in alone.chat(conversations, params)]
    assert [answer.tokens for answer in split.chat(conversations, params)] == expected
    split.check_integrity()


@pytest.mark.weights
def test_smollm2_log_probabilities(both: tuple[LLM, LLM]) -> None:
    prompt = [token % 49_000 for token in range(17, 9000, 97)]
    ours, theirs = (np.array(log_probabilities(llm, prompt)) for llm in reversed(both))
    assert np.abs(ours - theirs).max() < TOLERANCE


@pytest.mark.weights
def test_smollm2_a_constraint(both: tuple[LLM, LLM]) -> None:
    constraint = Constraint("json_schema", json.dumps({"type": "object", "properties": {"city": {"type": "string"}}}))
    params = SamplingParams(temperature=0.0, max_tokens=48, constraint=constraint)
    alone, split = (llm.generate("Name a city as JSON:", params) for llm in both)
    assert split.text == alone.text


@pytest.mark.weights
def test_smollm2_each_rank_has_a_third(both: tuple[LLM, LLM]) -> None:
    alone, split = both
    assert split.facts["weights_bytes"] < alone.facts["weights_bytes"] * 1.01


@pytest.mark.weights
def test_smollm2_two_ranks_are_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"possible are 3$"):
        LLM("smollm2", device="cpu", tensor_parallel=2)


def test_the_death_of_rank_0(tiny: Path) -> None:
    with open_llm(tiny, tensor_parallel=2, context=None, kv_memory="100MB") as llm:
        stream = llm.stream([5, 6], ENDLESS)
        next(stream)
        pids = [llm.facts["pid"], *other_ranks(llm.facts["pid"])]
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(EngineDied):
            list(stream)
        until(lambda: all_gone(pids), "the end of all ranks")


def test_a_rank_that_hangs(tiny: Path) -> None:
    """Its group ends when a sum has not come for TIMEOUT_S."""
    with open_llm(tiny, tensor_parallel=2, context=None, kv_memory="100MB") as llm:
        stream = llm.stream([5, 6], ENDLESS)
        next(stream)
        rank_0 = llm.facts["pid"]
        (rank_1,) = other_ranks(rank_0)
        os.kill(rank_1, signal.SIGSTOP)
        with pytest.raises(EngineDied):
            list(stream)
        until(lambda: all_gone([rank_0, rank_1]), "the end of all ranks, also of the one that is stopped")


def test_sleep_and_wake(tiny: Path) -> None:
    """Asleep, an engine has no other ranks; awake, it has new ones."""
    values = {"model": str(tiny), "device": "cpu", "tensor_parallel": 2, "kv_memory": "100MB"}
    engine = ProcessEngine(settings.load(values, environ={}), b"secret")
    try:
        pid = engine.wait_ready()["pid"]
        before = other_ranks(pid)
        for number, kind in enumerate(("sleep", "wake")):
            engine.query(Query(number, kind))
            replies = until(lambda: engine.receive(1.0), kind)
            assert [reply.error for reply in replies] == [None]  # type: ignore[union-attr]
            until(lambda: all_gone(before), "the end of the ranks before")
            assert len(other_ranks(pid)) == (0 if kind == "sleep" else 1)
        pids = [pid, *other_ranks(pid)]
    finally:
        engine.close()
    until(lambda: all_gone(pids), "the end of all ranks")


def _load(server: Server, threads: ThreadPoolExecutor) -> tuple[list[Future[str]], list[Future[int]]]:
    """Streams that have begun, as the text that each brings, and answers that clients have seen nothing of, as the
    status of each; all of them run."""
    begun = threading.Semaphore(0)

    def stream() -> str:
        body = {"model": server.model, "prompt": [5, 6], "max_tokens": 5000, "ignore_eos": True, "stream": True}
        text = ""
        with httpx.stream("POST", f"{server.api}/completions", json=body, timeout=240) as response:
            for line in response.iter_lines():
                text += line
                if line:
                    begun.release()
        return text

    def whole() -> int:
        body = {"model": server.model, "prompt": [7, 8], "max_tokens": 500, "ignore_eos": True}
        return httpx.post(f"{server.api}/completions", json=body, timeout=240).status_code

    streams = [threads.submit(stream) for _ in range(3)]
    for _ in streams:
        begun.acquire()
    others = [threads.submit(whole) for _ in range(4)]
    until(lambda: server.metric("num_requests_running") == 7, "all run")
    return streams, others


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_ends_or_hangs_under_load(tiny: Path, number: int) -> None:
    """What clients have seen nothing of is computed by the next group; streams that had begun end in an error."""
    options = ("--tensor-parallel", 2, "--kv-memory", "100MB", "--hang-s", 10)
    with Server(tiny, *options) as server, ThreadPoolExecutor(12) as threads:
        (engine,) = server.engines()
        (rank_1,) = other_ranks(engine)
        streams, others = _load(server, threads)
        os.kill(rank_1, number)
        for one in streams:
            *_, end = (json.loads(event) for event in one.result().split("data: ") if event.startswith("{"))
            assert end["error"]["code"] == "engine_died"
        assert [one.result() for one in others] == [200] * 4
        until(lambda: all_gone([engine, rank_1]), "the end of all ranks, also of one that is stopped")
        (again,) = server.engines()
        assert len(other_ranks(again)) == 1
        assert server.metric("engine_restarts") == 1
        until(server.idle, "idle")
        assert httpx.get(f"{server.url}/observe/check", timeout=120).json()["ok"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_idle_rank_ends_or_hangs(tiny: Path, number: int) -> None:
    """The next request is answered."""
    with Server(tiny, "--tensor-parallel", 2, "--kv-memory", "100MB", "--hang-s", 10) as server:
        (engine,) = server.engines()
        (rank_1,) = other_ranks(engine)
        os.kill(rank_1, number)
        body = {"model": server.model, "prompt": [7, 8], "max_tokens": 8, "ignore_eos": True}
        assert httpx.post(f"{server.api}/completions", json=body, timeout=240).status_code == 200
        until(lambda: all_gone([engine, rank_1]), "the end of all ranks, also of one that is stopped")
