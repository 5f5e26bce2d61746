"""Two servers over one PostgreSQL database: what is stored through one is there for the other."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from helpers.postgresql import PostgresServer
from helpers.server_process import PATIENCE_S, Server, until

pytestmark = pytest.mark.databases

CHAT: Any = "/v1/chat/completions"
ALICE, BOB = "alice-secret", "bob-secret"


@pytest.fixture(scope="module")
def servers(tiny: Path, postgres_server: PostgresServer) -> Iterator[tuple[Server, Server]]:
    """The first has several frontends. They have neither keys of the database nor a ledger: PostgreSQL is enough."""
    settings = {"database": postgres_server.url("shared stores"), "api_key": f"{ALICE},{BOB}"}
    options = (tiny, "--kv-memory", "50MB", "--max-sequences", 4)
    with Server(*options, "--frontends", 2, **settings) as one, Server(*options, **settings) as other:
        yield one, other


def both(servers: tuple[Server, Server], key: str = ALICE) -> tuple[openai.OpenAI, openai.OpenAI]:
    return servers[0].client(api_key=key), servers[1].client(api_key=key)


def test_a_response_is_read_continued_and_deleted_through_another_server(servers: tuple[Server, Server]) -> None:
    model = servers[0].model
    for a, b in (both(servers), both(servers)[::-1]):
        with a, b:
            events = list(a.responses.create(model=model, input="Hi", max_output_tokens=4, stream=True))
            first = events[-1].response  # type: ignore[union-attr]
            assert b.responses.retrieve(first.id).output_text == first.output_text
            second = b.responses.create(
                model=model, input="And?", previous_response_id=first.id, max_output_tokens=4, temperature=0
            )
            said = [item.content[0].text for item in a.responses.input_items.list(second.id, order="asc")]  # type: ignore[union-attr]
            assert said == ["Hi", first.output_text, "And?"]
            b.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError):
                a.responses.retrieve(first.id)
            with pytest.raises(openai.NotFoundError) as caught:
                a.responses.create(model=model, input="And?", previous_response_id=first.id)
            assert caught.value.param == "previous_response_id"


def test_chat_completions_are_shared_and_no_tenant_sees_those_of_another(servers: tuple[Server, Server]) -> None:
    (a, b), (other, _) = both(servers), both(servers, BOB)
    with a, b, other:
        made = a.chat.completions.create(
            model=servers[0].model, messages=[{"role": "user", "content": "Hi"}], max_tokens=3, store=True,
            metadata={"by": "a"},
        )  # fmt: skip
        assert [one.id for one in b.chat.completions.list(metadata={"by": "a"})] == [made.id]
        b.chat.completions.update(made.id, metadata={"by": "b"})
        assert a.chat.completions.retrieve(made.id).metadata == {"by": "b"}  # type: ignore[attr-defined]
        assert other.chat.completions.list().data == []
        for ask in (other.chat.completions.retrieve, other.chat.completions.delete):
            with pytest.raises(openai.NotFoundError):
                ask(made.id)
        b.chat.completions.delete(made.id)
        assert a.chat.completions.list().data == []


def chat(server: Server, name: str, **fields: Any) -> dict[str, Any]:
    body = {"model": server.model, "messages": [{"role": "user", "content": name}], "max_tokens": 4, **fields}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": body}


def upload(client: openai.OpenAI, lines: list[dict[str, Any]]) -> str:
    content = "\n".join(map(json.dumps, lines)).encode()
    return client.files.create(file=("in.jsonl", content), purpose="batch").id


def begun(client: openai.OpenAI, name: str, lines: int) -> Callable[[], bool]:
    def has_begun() -> bool:
        counts = client.batches.retrieve(name).request_counts
        return counts is not None and counts.completed >= lines

    return has_begun


def results(client: openai.OpenAI, name: str | None) -> list[str]:
    assert name is not None
    return [json.loads(text)["custom_id"] for text in client.files.content(name).text.splitlines()]


def test_a_file_of_one_server_is_the_input_of_a_batch_of_another(servers: tuple[Server, Server]) -> None:
    (a, b), (other, _) = both(servers), both(servers, BOB)
    with a, b, other:
        file = upload(a, [chat(servers[0], f"r{index}") for index in range(5)])
        name = b.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h").id
        until(lambda: a.batches.retrieve(name).status == "completed", "the end of the batch")
        batch = a.batches.retrieve(name)
        for client in (a, b):
            assert client.batches.retrieve(name) == batch
            assert results(client, batch.output_file_id) == [f"r{index}" for index in range(5)]
        assert [one.id for one in a.batches.list()] == [one.id for one in b.batches.list()] == [name]
        assert other.batches.list().data == other.files.list().data == []
        for ask in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(name)
        b.files.delete(file)
        with pytest.raises(openai.NotFoundError):
            a.files.content(file)


def test_a_batch_is_cancelled_through_another_server(servers: tuple[Server, Server]) -> None:
    a, b = both(servers)
    with a, b:
        names = [f"r{index}" for index in range(500)]  # many more than run at once: some have not begun
        endless = [chat(servers[0], name, max_tokens=400, ignore_eos=True) for name in names]
        name = a.batches.create(input_file_id=upload(a, endless), endpoint=CHAT, completion_window="24h").id
        until(begun(b, name, 1), "the first line")
        assert b.batches.cancel(name).status == "cancelling"
        until(lambda: b.batches.retrieve(name).status == "cancelled", "the end of the batch")
        batch = a.batches.retrieve(name)
        both_files = results(a, batch.output_file_id) + results(b, batch.error_file_id)
        assert sorted(both_files) == sorted(names)


def test_a_killed_server_is_succeeded_by_another(
    tiny: Path, servers: tuple[Server, Server], postgres_server: PostgresServer
) -> None:
    """Each line has one result, and those that had one are not run again."""
    settings = {"database": postgres_server.url("shared stores"), "api_key": f"{ALICE},{BOB}"}
    names = [f"r{index}" for index in range(40)]
    with Server(tiny, "--kv-memory", "50MB", "--max-sequences", 2, **settings) as one, both(servers)[1] as client:
        with one.client(api_key=ALICE) as first:
            lines = [chat(one, name, max_tokens=100, ignore_eos=True) for name in names]
            name = first.batches.create(input_file_id=upload(first, lines), endpoint=CHAT, completion_window="24h").id
            until(begun(client, name, 3), "the first lines, as the other server sees them")
        one.signal(signal.SIGKILL)
        one.wait()
        before = client.batches.retrieve(name).request_counts
        assert before is not None
        assert 3 <= before.completed < 40
        until(lambda: client.batches.retrieve(name).status == "completed", "the end of the batch")
        batch = client.batches.retrieve(name)
        assert results(client, batch.output_file_id) == names
        assert batch.request_counts == openai.types.BatchRequestCounts(completed=40, failed=0, total=40)
        headers = {"authorization": f"Bearer {ALICE}"}
        ran = sum(
            len(httpx.get(f"{server.url}/observe/requests", params={"batch": name, "limit": 100}, headers=headers)
                .json()["requests"])
            for server in servers
        )  # fmt: skip
        assert ran == 40 - before.completed


def test_while_the_database_is_away_stored_answers_are_refused_and_others_are_given(
    servers: tuple[Server, Server], postgres_server: PostgresServer
) -> None:
    one, _ = servers

    def ask(path: str, **body: Any) -> httpx.Response:
        headers, body = {"authorization": f"Bearer {ALICE}"}, {"model": one.model, "input": "Hi", **body}
        return httpx.post(f"{one.api}/{path}", json=body, headers=headers, timeout=PATIENCE_S)

    postgres_server.stop()
    try:
        for _ in range(2):
            refused = ask("responses", max_output_tokens=2)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable")
            assert "127.0.0.1" not in refused.text
        assert ask("responses", max_output_tokens=2, store=False).status_code == 200
        for path in ("files", "batches", "responses/resp_1"):
            refused = httpx.get(f"{one.api}/{path}", headers={"authorization": f"Bearer {ALICE}"}, timeout=PATIENCE_S)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable")
    finally:
        postgres_server.start()
    until(lambda: ask("responses", max_output_tokens=2).status_code == 200, "the database is back")
