"""The Batch API of a real server, through the openai SDK, and what is left of it by kill -9."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import openai

from helpers.server_process import PATIENCE_S, Server, until
from penstock.batch.store import open_store

CHAT = "/v1/chat/completions"
COUNTS = openai.types.BatchRequestCounts
ENDED = ("completed", "failed", "expired", "cancelled")


def line(server: Server, name: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": server.model, **body}}


def chat(server: Server, name: str, **fields: Any) -> dict[str, Any]:
    return line(server, name, messages=[{"role": "user", "content": name}], **{"max_tokens": 4, **fields})


def create(client: openai.OpenAI, lines: list[dict[str, Any]], endpoint: Any = CHAT) -> str:
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h").id


def ended(client: openai.OpenAI, name: str) -> openai.types.Batch:
    def found() -> openai.types.Batch | None:
        batch = client.batches.retrieve(name)
        return batch if batch.status in ENDED else None

    batch = until(found, f"the end of {name}")
    assert batch is not None
    return batch


def results(client: openai.OpenAI, name: str | None) -> dict[str, Any]:
    """By custom_id, each of which is there once."""
    if name is None:
        return {}
    lines = [json.loads(text) for text in client.files.content(name).text.splitlines()]
    found = {one["custom_id"]: one for one in lines}
    assert len(found) == len(lines)
    return found


def test_all_endpoints(server: Server, client: openai.OpenAI) -> None:
    bodies: dict[Any, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "seed": 1},
        "/v1/completions": {"prompt": "Hi", "max_tokens": 3, "seed": 1},
        "/v1/embeddings": {"input": "Hi"},
        "/v1/responses": {"input": "Hi", "max_output_tokens": 3},
    }
    names = {url: create(client, [line(server, "a", url, **body)], url) for url, body in bodies.items()}
    for url, name in names.items():
        batch = ended(client, name)
        (found,) = results(client, batch.output_file_id).values()
        assert batch.usage is not None
        assert batch.usage.input_tokens > 0
        direct = httpx.post(server.url + url, json={"model": server.model, **bodies[url]}, timeout=PATIENCE_S).json()
        answer = found["response"]["body"]
        assert {*answer} == {*direct}
        for field in ("choices", "data"):
            assert answer.get(field) == direct.get(field), f"another answer than without a batch, to {url}"


def test_a_line_is_recorded_as_part_of_its_batch(server: Server, client: openai.OpenAI) -> None:
    name = create(client, [chat(server, "a"), chat(server, "b", temperature=9)])
    batch = ended(client, name)
    assert (batch.status, batch.request_counts) == (
        "completed",
        openai.types.BatchRequestCounts(completed=1, failed=1, total=2),
    )
    failed = results(client, batch.error_file_id)["b"]["response"]
    assert (failed["status_code"], failed["body"]["error"]["param"]) == (400, "temperature")
    records = httpx.get(f"{server.url}/observe/requests", params={"batch": name}, timeout=PATIENCE_S).json()["requests"]
    assert {one["request_id"] for one in records} == {
        one["response"]["request_id"]
        for file in (batch.output_file_id, batch.error_file_id)
        for one in results(client, file).values()
    }
    assert {one["batch"] for one in records} == {name}


def test_a_killed_server_is_succeeded_by_one_that_finishes_its_batches(tiny: Path, tmp_path: Path) -> None:
    options = ("--kv-memory", "50MB", "--max-sequences", 4)

    def begin(server: Server, client: openai.OpenAI) -> str:
        """A batch of which some lines have run, and most have not."""
        name = create(client, [chat(server, f"r{index}", max_tokens=100, ignore_eos=True) for index in range(30)])

        def begun() -> bool:
            counts = client.batches.retrieve(name).request_counts
            return counts is not None and counts.completed >= 3

        until(begun, "the first lines")
        return name

    with Server(tiny, *options, data_dir=str(tmp_path)) as server, server.client() as client:
        name = begin(server, client)
        server.signal(signal.SIGKILL)
        server.wait()
    with Server(tiny, *options, data_dir=str(tmp_path)) as server, server.client() as client:
        batch = ended(client, name)
        assert batch.status == "completed"
        assert [*results(client, batch.output_file_id)] == [f"r{index}" for index in range(30)]
        assert batch.request_counts == COUNTS(completed=30, failed=0, total=30)
        until(server.idle, "the end of everything")
        name = begin(server, client)
        server.signal(signal.SIGTERM)  # does not wait for the lines
        assert server.wait() == 0
    store = open_store(tmp_path / "penstock.db")
    left = store.batch(name, "")
    assert (left.status, left.completed + len(store.pending(name, 0, 100))) == ("in_progress", 30)
    store.close()
