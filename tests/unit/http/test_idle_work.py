"""Work of an idle server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.http import idle_work
from penstock.http.api.fields import StrictModel


class Unbuilt(StrictModel):
    number: int


class Vocabulary:
    def __init__(self) -> None:
        self.measured = False

    @property
    def longest(self) -> int:
        self.measured = True
        return 1


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_work, "IDLE_S", 0)
    monkeypatch.setattr(idle_work, "_schemas", lambda base: iter([Unbuilt]))


def test_it_waits_until_no_request_is_open() -> None:
    Unbuilt.__pydantic_complete__ = False
    tokenizer = Vocabulary()
    service: Any = SimpleNamespace(open=1, models=SimpleNamespace(local=[SimpleNamespace(tokenizer=tokenizer)]))

    async def story() -> None:
        working = asyncio.create_task(idle_work.do_idle_work(cast(Any, service)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not Unbuilt.__pydantic_complete__
        assert not tokenizer.measured
        service.open = 0
        await working

    asyncio.run(story())
    assert Unbuilt.__pydantic_complete__
    assert tokenizer.measured


def test_schemas_are_found_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    class Deeper(Unbuilt):
        pass

    assert {Unbuilt, Deeper} <= {*idle_work._schemas(StrictModel)}
