"""Two servers over one PostgreSQL database: what is stored through one is there for the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from helpers.postgresql import PostgresServer
from helpers.server_process import PATIENCE_S, Server, until

pytestmark = pytest.mark.databases

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
    finally:
        postgres_server.start()
    until(lambda: ask("responses", max_output_tokens=2).status_code == 200, "the database is back")
