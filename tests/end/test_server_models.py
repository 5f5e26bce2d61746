"""Several models behind one server: two replicas of one, others on demand, an upstream (the server itself)."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from helpers.server_process import PATIENCE_S, Server, until

SETTINGS = """
[serve]
max_loaded = 2

[cache]
kv_memory = "100MB"

[[models]]
name = "pair"
model = "{tiny}"
replicas = 2
aliases = ["two"]
price = {{ input = 1.0, output = 2.0 }}

[[models]]
name = "later"
model = "{tiny}"
load = "demand"

[[models]]
name = "third"
model = "{tiny}"
load = "demand"
"""
LONG = 1500  # tokens, some tenths of a second


@pytest.fixture(scope="module")
def several(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("settings") / "penstock.toml"
    file.write_text(SETTINGS.format(tiny=tiny))
    with Server(f"--config={file}", threads="1") as server:
        yield server


@pytest.fixture
def http(several: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=several.url, timeout=PATIENCE_S) as client:
        yield client


def generate(client: openai.OpenAI, model: str, tokens: int = 4) -> Any:
    return client.completions.create(
        model=model, prompt="once", max_tokens=tokens, temperature=0, extra_body={"ignore_eos": True}
    )


def states(http: httpx.Client) -> dict[str, str]:
    return {one["id"]: one["state"] for one in http.get("/v1/models").json()["data"]}


def pid(http: httpx.Client, model: str, replica: int = 0) -> int:
    found: int = http.get("/observe/facts", params={"model": model, "replica": replica}).json()["engine"]["pid"]
    return found


def test_models_are_described_and_found_by_all_their_names(several: Server, http: httpx.Client) -> None:
    listed = {one["id"]: one for one in http.get("/v1/models").json()["data"]}
    assert list(listed) == ["pair", "later", "third"]
    assert listed["pair"]["price"] == {"input": 1.0, "output": 2.0, "cached_input": None}
    assert listed["pair"]["aliases"] == ["two"]
    with several.client() as client:
        answers = [generate(client, name) for name in ("pair", "pair:latest", "two")]
        assert {answer.model for answer in answers} == {"pair"}
        assert len({answer.choices[0].text for answer in answers}) == 1
        with pytest.raises(openai.NotFoundError, match="this server has 'pair', 'later', 'third'"):
            generate(client, "fourth")


def test_all_apis_choose_the_model(several: Server, http: httpx.Client) -> None:
    with anthropic.Anthropic(base_url=several.url, api_key="none", max_retries=0, timeout=PATIENCE_S) as claude:
        message = claude.messages.create(model="later", max_tokens=4, messages=[{"role": "user", "content": "a"}])
        assert message.model == "later"
    with ollama.Client(several.url, timeout=PATIENCE_S) as llama:
        assert llama.generate("later", "a", options={"num_predict": 4}).model == "later"
        assert [one.model for one in llama.list().models] == ["pair:latest", "later:latest", "third:latest"]
        assert {one.model for one in llama.ps().models} == {"pair:latest", "later:latest"}
    assert http.post("/tokenize", json={"model": "later", "prompt": "a"}).json()["count"] > 0
    assert http.post("/observe/lab", json={"model": "later", "prompt": "a"}).status_code == 200
    assert http.post("/tokenize", json={"model": "nope", "prompt": "a"}).status_code == 404


def test_the_death_of_a_replica_under_load_fails_no_whole_answer(several: Server, http: httpx.Client) -> None:
    def open_requests(replica: int) -> int:
        query: dict[str, str | int] = {"model": "pair", "replica": replica, "state": "open"}
        return len(http.get("/observe/requests", params=query).json()["requests"])

    with several.client() as client, ThreadPoolExecutor(16) as threads:
        generate(client, "pair")  # loaded
        pids = [pid(http, "pair", replica) for replica in range(2)]
        for engine in pids:
            os.kill(engine, signal.SIGSTOP)  # until all requests are there: none has ended by then
        try:
            whole = [threads.submit(generate, client, "pair", LONG) for _ in range(4)]
            counts = until(lambda: sum(found := [open_requests(0), open_requests(1)]) == 4 and found, "four requests")
            assert isinstance(counts, list)
            dying = counts.index(max(counts))
        finally:
            for engine in pids:
                os.kill(engine, signal.SIGCONT)
        os.kill(pids[dying], signal.SIGKILL)
        whole += [threads.submit(generate, client, "pair") for _ in range(4)]
        tokens = [one.result(PATIENCE_S).usage.completion_tokens for one in whole]
        assert tokens == [LONG] * 4 + [4] * 4
        until(lambda: pid(http, "pair", dying) != pids[dying], "the restart")


def test_swapping_under_load_loses_nothing(several: Server, http: httpx.Client) -> None:
    with several.client() as client, ThreadPoolExecutor(12) as threads:
        names = ["pair", "later", "third"] * 4
        asked = [threads.submit(generate, client, name, 300) for name in names]
        assert [one.result(PATIENCE_S).model for one in asked] == names
    assert sorted(states(http).values()) == ["ready", "ready", "unloaded"]


def test_models_come_and_go(several: Server, http: httpx.Client, tiny: Path) -> None:
    entry = {"name": "new", "model": str(tiny), "load": "demand", "kv_memory": "50MB"}
    assert http.post("/admin/models", json=entry).json()["state"] == "unloaded"
    assert http.post("/admin/models", json=entry).status_code == 400
    with several.client() as client:
        assert generate(client, "new").model == "new"
        assert http.post("/sleep", params={"model": "new"}).json()["state"] == "asleep"
        asleep = pid(http, "new")
        assert generate(client, "new").model == "new"
        assert pid(http, "new") == asleep
        with ollama.Client(several.url, timeout=PATIENCE_S) as llama:
            llama.generate("new", keep_alive=0)
        assert states(http)["new"] == "unloaded"
        assert http.delete("/admin/models/new").json() == {"id": "new", "deleted": True}
        with pytest.raises(openai.NotFoundError):
            generate(client, "new")
    wrong = http.post("/admin/models", json={"name": "x", "model": "/nowhere", "threads": 0})
    assert wrong.status_code == 400
    assert "threads" in wrong.json()["error"]["message"]


def test_an_upstream_is_a_model_like_any_other(several: Server, http: httpx.Client) -> None:
    entry = {"name": "far", "upstream": several.api, "upstream_model": "pair", "capabilities": ["chat"]}
    assert http.post("/admin/models", json=entry).json()["owned_by"] == "127.0.0.1"
    with several.client() as client:
        messages: Any = [{"role": "user", "content": "a"}]
        near, far = (
            client.chat.completions.create(model=name, messages=messages, max_tokens=4, temperature=0)
            for name in ("pair", "far")
        )
        assert far.model == "far"
        assert far.choices[0].message.content == near.choices[0].message.content
    assert http.delete("/admin/models/far").status_code == 200


def test_a_secret_of_the_environment_is_not_for_every_client(http: httpx.Client) -> None:
    entry = {"name": "thief", "upstream": "http://127.0.0.1:9/v1", "api_key_env": "HOME"}
    refused = http.post("/admin/models", json=entry)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "api_key_env")
