"""A server whose replicas are a prefill and a decode pool: answers are those of one engine, whichever is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.adapter_samples import write_adapter
from helpers.server_process import PATIENCE_S, Server, until
from penstock import LLM, SamplingParams
from penstock.store.resolve import resolve

SETTINGS = """
[cache]
kv_memory = "100MB"

[[models]]
name = "pooled"
model = "{tiny}"
adapters = ["style={adapter}"]
replicas = 2
prefill_replicas = 1
prefill_min_tokens = 64
"""
PREFILL, DECODE = 0, 1
LENGTH = 200  # tokens of a long prompt: 12 full blocks


@pytest.fixture(scope="module")
def adapter(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter") / "style", resolve(str(tiny)).spec, size=2.0)


@pytest.fixture(scope="module")
def config(tiny: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("settings") / "penstock.toml"
    file.write_text(SETTINGS.format(tiny=tiny, adapter=adapter))
    return file


@pytest.fixture(scope="module")
def server(config: Path) -> Iterator[Server]:
    with Server(f"--config={config}") as server:
        yield server


class Pools:
    """Each request is on a connection of its own: another frontend may get it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=server.url, timeout=PATIENCE_S, limits=limits)

    def deployments(self) -> list[dict[str, Any]]:
        (model, *_) = self.http.get("/admin/models").json()["data"]
        found: list[dict[str, Any]] = model["deployments"]
        return found

    def open(self, replica: int) -> int:
        return int(self.deployments()[replica]["open"])

    def open_requests(self) -> float:
        """Of all models and frontends."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("penstock_open_requests{"))

    def ready(self) -> bool:
        return all(one["state"] == "ready" for one in self.deployments())

    def idle(self) -> bool:
        """Nothing is open, and no block is held in either replica."""
        lines = self.http.get("/metrics").text.splitlines()
        held = [line for line in lines if line.startswith("penstock_kv_blocks{") and 'state="held"' in line]
        assert len(held) == 2
        return not any(float(line.split()[-1]) for line in held) and not any(map(self.open, (PREFILL, DECODE)))

    def pid(self, replica: int) -> int:
        facts = self.http.get("/observe/facts", params={"model": "pooled", "replica": replica}).json()
        return int(facts["engine"]["pid"])

    def kill(self, replica: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(replica), number)

    def counts(self) -> dict[str, float]:
        """Transfers and failures by cause."""
        values = self.server.metrics()
        failures = {
            name.partition("cause=")[2].rstrip("}"): value
            for name, value in values.items()
            if name.startswith("penstock_kv_transfer_failures_total")
        }
        return {"transfers": values["penstock_kv_transfers_total"], **failures}

    def post(self, tokens: list[int], **fields: Any) -> httpx.Response:
        body = {
            "model": "pooled", "prompt": tokens, "max_tokens": 16, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **fields,
        }  # fmt: skip
        return self.http.post("/v1/completions", json=body)

    def complete(self, tokens: list[int], **fields: Any) -> dict[str, Any]:
        answer = self.post(tokens, **fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture
def pools(server: Server) -> Iterator[Pools]:
    """Both replicas are up. Whatever a test has done, nothing of it is left in either."""
    pools = Pools(server)
    until(pools.ready, "both replicas")
    yield pools
    until(pools.ready, "both replicas")
    until(pools.idle, "idle")
    assert pools.http.get("/observe/check").json()["ok"]
    pools.http.close()


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    return [(seed * 37 + place * (7 + seed)) % 300 + 5 for place in range(length)]


def tokens_of(answer: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["choices"]]


def greedy(llm: LLM, tokens: list[int]) -> list[int]:
    return list(llm.generate(tokens, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)).tokens)


def delta(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}


def test_answers_are_those_of_one_engine(pools: Pools, llm: LLM) -> None:
    before = pools.counts()
    for seed in range(3):
        answer = pools.complete(prompt(seed))
        assert tokens_of(answer) == [greedy(llm, prompt(seed))]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # it was computed for this request
    sampled = SamplingParams(temperature=1.0, seed=7, n=2, max_tokens=16, ignore_eos=True)
    expected = llm.generate(prompt(3), sampled)
    answer = pools.complete(prompt(3), temperature=1.0, seed=7, n=2)
    assert tokens_of(answer) == [choice.tokens for choice in expected.choices]
    assert delta(before, pools.counts()) == {"transfers": 4}


def test_what_is_cached_or_short_skips_the_prefill_pool(pools: Pools) -> None:
    tokens = prompt(10)
    pools.complete(tokens)
    before = pools.counts()
    again = pools.complete(tokens)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 192
    pools.complete(prompt(11, 60))
    assert delta(before, pools.counts()) == {}


def test_salts_and_adapters_have_blocks_of_their_own(pools: Pools, tiny: Path, adapter: Path) -> None:
    tokens = prompt(20)
    with LLM(str(tiny), kv_memory="100MB", threads=1, device="cpu", adapters={"style": str(adapter)}) as llm:
        plain = greedy(llm, tokens)
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        styled = list(llm.generate(tokens, params, adapter="style").tokens)
    assert plain != styled
    before = pools.counts()
    assert tokens_of(pools.complete(tokens)) == [plain]
    for salt in ("a", "b"):
        salted = pools.complete(tokens, cache_salt=salt)
        assert tokens_of(salted) == [plain]
        assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert tokens_of(pools.complete(tokens, model="pooled@style")) == [styled]
    assert delta(before, pools.counts()) == {"transfers": 4}


def test_the_phases_are_in_the_request_timeline(pools: Pools) -> None:
    answer = pools.complete(prompt(30))
    shown = pools.http.get(f"/observe/requests/{answer['id']}").json()
    stages = [stage["name"] for stage in shown["stages"]]
    assert stages.index("prefill_replica") < stages.index("kv_transfer") < stages.index("decode")
    chosen = [(one["policy"], one["chosen"]) for one in shown["route"]]
    assert chosen == [("prefix (prefill)", "pooled/0"), ("prefix", "pooled/1")]
    assert [one["role"] for one in pools.deployments()] == ["prefill", "decode"]


def test_the_prefill_replica_is_killed_in_its_prefill(pools: Pools, llm: LLM) -> None:
    before = pools.counts()
    pools.kill(PREFILL, signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(pools.complete, prompt(40))
        until(lambda: pools.open(PREFILL) == 1, "prefill")
        pools.kill(PREFILL)
        assert tokens_of(answer.result(PATIENCE_S)) == [greedy(llm, prompt(40))]
    assert delta(before, pools.counts()) == {"prefill": 1}
    assert tokens_of(pools.complete(prompt(41))) == [greedy(llm, prompt(41))]  # while it restarts, or after that


def test_the_prefill_replica_is_killed_before_its_blocks_are_fetched(pools: Pools, llm: LLM) -> None:
    """The decode replica is stopped, so that it fetches them only afterwards."""
    before = pools.counts()
    pools.kill(DECODE, signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(pools.complete, prompt(50))
        until(lambda: pools.open(DECODE) == 1 and pools.open(PREFILL) == 0, "the end of the prefill")
        pools.kill(PREFILL)
        until(lambda: pools.deployments()[PREFILL]["state"] != "ready", "its death")
        pools.kill(DECODE, signal.SIGCONT)
        assert tokens_of(answer.result(PATIENCE_S)) == [greedy(llm, prompt(50))]
    (cause,) = delta(before, pools.counts())
    assert cause in ("prefill", "connection")


def test_the_decode_replica_is_killed_while_its_prompt_is_computed(pools: Pools, llm: LLM) -> None:
    pools.kill(PREFILL, signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(pools.complete, prompt(60))
        until(lambda: pools.open(PREFILL) == 1, "prefill")
        pools.kill(DECODE)
        until(lambda: pools.deployments()[DECODE]["state"] != "ready", "its death")
        pools.kill(PREFILL, signal.SIGCONT)
        assert tokens_of(answer.result(PATIENCE_S)) == [greedy(llm, prompt(60))]


def test_a_stream_goes_on_when_the_prefill_replica_dies_behind_it(pools: Pools, llm: LLM) -> None:
    body = {
        "model": "pooled", "prompt": prompt(70), "max_tokens": 2000, "temperature": 0, "ignore_eos": True,
        "stream": True, "return_token_ids": True,
    }  # fmt: skip
    tokens: list[int] = []
    killed = False  # a chunk may have no tokens
    with pools.http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    tokens += choice.get("token_ids") or []
                    if tokens and not killed:
                        pools.kill(PREFILL)
                        killed = True
    assert killed
    expected = llm.generate(prompt(70), SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True))
    assert tokens == expected.tokens


@pytest.mark.parametrize("stopped", [PREFILL, DECODE])
def test_a_client_that_disconnects_leaves_no_block(pools: Pools, stopped: int) -> None:
    """While its prompt is computed, or while its blocks are to be fetched."""
    pools.kill(stopped, signal.SIGSTOP)
    with httpx.Client(base_url=pools.server.url, timeout=PATIENCE_S) as client, ThreadPoolExecutor() as threads:
        body = {"model": "pooled", "prompt": prompt(80 + stopped), "max_tokens": 16, "stream": True}
        asking = threads.submit(lambda: client.send(client.build_request("POST", "/v1/completions", json=body)))
        until(lambda: pools.open(DECODE) == 1 and (pools.open(PREFILL) == 1) == (stopped == PREFILL), "its phase")
        _close_sockets(client)
        until(lambda: pools.open(DECODE) == 0, "its end")
        pools.kill(stopped, signal.SIGCONT)
        assert asking.exception(PATIENCE_S) is not None


def test_several_frontends(config: Path, llm: LLM) -> None:
    """Each has its prompts computed by the same prefill replica; one that is killed meanwhile takes nothing with it."""
    with Server(f"--config={config}", "--frontends", 2) as server, ThreadPoolExecutor() as threads:
        pools, seen, asked = Pools(server), set(), 0
        while len(seen) < 2 or asked < 4:
            answer = pools.post(prompt(asked))
            assert tokens_of(answer.json()) == [greedy(llm, prompt(asked))]
            seen.add(answer.headers["x-penstock-frontend"])
            asked += 1
        assert pools.counts() == {"transfers": asked}
        prefiller = pools.pid(PREFILL)
        os.kill(prefiller, signal.SIGSTOP)
        cut_off = threads.submit(pools.post, prompt(90))
        until(lambda: pools.open_requests() == 1, "its prompt is at the prefill replica")
        for frontend in server.frontends():
            os.kill(frontend, signal.SIGKILL)
        assert isinstance(cut_off.exception(PATIENCE_S), httpx.HTTPError)
        os.kill(prefiller, signal.SIGCONT)
        assert tokens_of(pools.complete(prompt(91))) == [greedy(llm, prompt(91))]
        until(pools.idle, "idle")
        assert pools.http.get("/observe/check").json()["ok"]
        pools.http.close()


def _close_sockets(client: httpx.Client) -> None:
    """As a client that is killed: the request in flight ends in an error."""
    for connection in client._transport._pool.connections:  # type: ignore[attr-defined]
        connection._connection._network_stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
