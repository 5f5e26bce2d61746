"""The ledger of a real server: every delivered answer is in it exactly once, also after kill -9 at any moment."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import pytest
from sqlalchemy import text

from helpers.ledger_clients import CLIENTS, Clients
from helpers.server_process import PATIENCE_S, Server, until
from penstock.database.database import open_database
from penstock.gateway.keys.audit import Actor
from penstock.gateway.keys.store import KeyStore

PRICE = {"input": 2.0, "output": 8.0, "cached_input": 0.5}
KEY_FIELDS = {"concurrent_requests": CLIENTS, "tokens_per_minute": 10**9, "usd_per_month": 1e6}


class Books:
    """A settings file and a database, which survive their server."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.url = f"sqlite:///{folder / 'tenants.db'}"
        self.config = folder / "penstock.toml"
        price = ", ".join(f"{name} = {value}" for name, value in PRICE.items())
        self.config.write_text(
            f'[[models]]\nname = "m"\nmodel = "{model}"\nkv_memory = "50MB"\nprice = {{ {price} }}\n'
        )
        database = open_database(self.url)
        values: dict[str, Any] = {"name": "clients", "scopes": ["inference", "observe", "admin"], **KEY_FIELDS}
        _, self.key = KeyStore(database).create_key("acme", values, Actor("test"))
        database.close()

    def serve(self) -> Server:
        return Server(f"--config={self.config}", keys="true", database=self.url)

    def records(self) -> dict[str, dict[str, Any]]:
        """By request id, each of which must be there once."""
        database = open_database(self.url)
        with database.read() as connection:
            rows = [dict(row._mapping) for row in connection.execute(text("SELECT * FROM usage_records"))]
        database.close()
        found = {row["request"]: row for row in rows}
        assert len(found) == len(rows)
        return found

    def check(self, delivered: dict[str, dict[str, Any]]) -> None:
        records = self.records()
        for name, usage in delivered.items():
            record = records[name]  # a KeyError: the client has the answer, the ledger has not
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            tokens = (usage["prompt_tokens"], cached, usage["completion_tokens"])
            assert (record["input"], record["cached"], record["output"]) == tokens
            assert (record["tenant"], record["model"]) == ("acme", "m")
            assert round(usage["cost_usd"] * 1e6) == record["microusd"] == cost(*tokens)


def cost(prompt: int, cached: int, output: int) -> int:
    parts = 10 * ((prompt - cached) * PRICE["input"] + cached * PRICE["cached_input"] + output * PRICE["output"])
    return -(-int(parts) // 10)


def kill_at_random_moments(folder: Path, model: Path, *, kills: int, events: int, seed: int) -> None:
    """Each after at most so many events of answers."""
    books, chance = Books(folder, model), random.Random(seed)
    delivered: dict[str, dict[str, Any]] = {}
    for number in range(kills):
        with books.serve() as server:
            clients = Clients(server.url, books.key, seed * 1000 + number)
            asyncio.run(clients.run(lambda: server.signal(signal.SIGKILL), chance.randint(20, events)))
        assert not delivered.keys() & clients.delivered.keys()
        delivered |= clients.delivered
        books.check(delivered)
    assert delivered


def test_kill_9_at_random_moments(tmp_path: Path, tiny: Path) -> None:
    kill_at_random_moments(tmp_path, tiny, kills=3, events=300, seed=20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_fifty_times(tmp_path: Path, tiny: Path) -> None:
    kill_at_random_moments(tmp_path, tiny, kills=50, events=1500, seed=random.randrange(10**6))


def test_every_api_is_recorded_and_shows_its_cost(tmp_path: Path, tiny: Path) -> None:
    books = Books(tmp_path, tiny)
    headers = {"authorization": f"Bearer {books.key}"}
    question: Any = {"role": "user", "content": "Hi"}
    with books.serve() as server:
        with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
            chat = client.post("/v1/chat/completions", json={"model": "m", "messages": [question], "max_tokens": 2})
            assert chat.headers["x-ratelimit-limit-tokens"] == str(KEY_FIELDS["tokens_per_minute"])
            costs = [chat.json()["usage"]["cost_usd"]]
            body = {"model": "m", "prompt": ["a b", "c"], "max_tokens": 2, "n": 2}
            costs.append(client.post("/v1/completions", json=body).json()["usage"]["cost_usd"])
            body = {"model": "m", "input": ["a b", "c"]}
            costs.append(client.post("/v1/embeddings", json=body).json()["usage"]["cost_usd"])
            body = {"model": "m", "input": "Hi", "max_output_tokens": 2}
            costs.append(client.post("/v1/responses", json=body).json()["usage"]["cost_usd"])
        options = {"max_retries": 0, "timeout": PATIENCE_S}
        with anthropic.Anthropic(base_url=server.url, auth_token=books.key, **options) as client:  # type: ignore[arg-type]
            asked = {"model": "m", "messages": [question], "max_tokens": 2}
            costs.append(client.messages.create(**asked).usage.model_extra["cost_usd"])  # type: ignore[call-overload]
            with client.messages.stream(**asked) as stream:  # type: ignore[arg-type]
                ends = [event for event in stream if event.type == "message_delta"]
            costs.append(ends[0].usage.model_extra["cost_usd"])  # type: ignore[index]
        with ollama.Client(server.url, headers=headers, timeout=PATIENCE_S) as client:
            answers = list(client.chat(model="m", messages=[question], options={"num_predict": 2}, stream=True))
            assert answers[-1].done
        with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
            report = client.get("/usage?group_by=key,model").json()
            traced = [one["cost_usd"] for one in client.get("/observe/requests").json()["requests"]]
            metrics = client.get("/metrics").text
            check_disconnect(books, client)
    assert report["total"]["requests"] == len(costs) + 1 == len(traced)
    assert report["data"][0]["model"] == "m"
    assert report["total"]["cost_usd"] == pytest.approx(sum(traced))
    assert set(costs) <= set(traced)
    assert 'penstock_usage_cost_usd_total{model="m",tenant="acme"}' in metrics


def check_disconnect(books: Books, client: httpx.Client) -> None:
    """A client that disconnects is recorded once, with what it was given."""
    assert sum(record["microusd"] for record in books.records().values()) > 0
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4000, "ignore_eos": True}

    def disconnect() -> tuple[list[str], Any] | None:
        before = books.records()
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            seen = [line for line, _ in zip(response.iter_lines(), range(40), strict=False)]
        (name,) = until(lambda: books.records().keys() - before.keys(), "the record")
        record = books.records()[name]
        return None if record["finish"] == "length" else (seen, record)  # it ended before this process went on

    seen, record = until(disconnect, "an answer that is given up before its end")
    assert record["finish"] == "cancelled"
    assert len([line for line in seen if '"content":"' in line]) // 2 <= record["output"] < 4000
    assert record["microusd"] == cost(record["input"], record["cached"], record["output"])
