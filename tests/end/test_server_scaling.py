"""A server whose replicas follow the load: none of its requests is lost while they come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.server_process import PATIENCE_S, Server, until

SETTINGS = """
[cache]
kv_memory = "60MB"

[[models]]
name = "elastic"
model = "{tiny}"
max_sequences = 2
threads = 1
min_replicas = 0
max_replicas = 2
keep_alive = "3s"
scale_up_s = 0.1
scale_down_s = 0.5
"""

TWO_READY = 'penstock_replicas{model="elastic",state="ready"} 2.0'


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("settings") / "penstock.toml"
    file.write_text(SETTINGS.format(tiny=tiny))
    with Server(f"--config={file}") as server:
        yield server


def test_replicas_come_and_go_with_the_load(server: Server) -> None:
    def generate(tokens: int) -> int:
        body = {"model": "elastic", "prompt": "once", "max_tokens": tokens, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        found: int = answer.json()["usage"]["completion_tokens"]
        return found

    def scaling() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{server.url}/observe/scaling", timeout=PATIENCE_S).json()
        return found

    def scrape() -> str:
        return httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text

    def ready() -> int:
        listed = httpx.get(f"{server.url}/admin/models", timeout=PATIENCE_S).json()["data"][0]
        assert listed["scaling"]["max_replicas"] == 2
        return sum(one["state"] == "ready" for one in listed["deployments"])

    enough = threading.Event()

    def keep_asking() -> list[int]:
        counts = []
        while not enough.is_set():
            counts.append(generate(400))
        return counts

    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(keep_asking) for _ in range(8)]
        try:
            until(lambda: ready() == 2, "a second replica", 60)
            metrics = httpx.get(f"{server.url}/metrics").text
        finally:
            enough.set()
        counts = [count for client in clients for count in client.result(PATIENCE_S)]
        with_one = [threads.submit(generate, 400) for _ in range(2)]  # while the other one drains
        assert {*counts, *(one.result(PATIENCE_S) for one in with_one)} == {400}
    assert 'penstock_replica_demand{model="elastic"}' in metrics
    until(lambda: ready() == 0, "an idle model is unloaded", 60)
    assert generate(4) == 4
    changes = [(one["before"], one["after"]) for one in reversed(scaling()["decisions"])]
    assert changes[0] == (1, 2)
    assert changes[-1] == (0, 1)
    assert changes[-2][1] == 0
    assert httpx.get(f"{server.url}/observe/check", timeout=PATIENCE_S).json()["ok"]
