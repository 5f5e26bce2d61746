"""Messages between the frontend and an engine process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine.ipc import ENGINE_TURN_BYTES, IpcLink, open_engine_link, open_frontend_link
from penstock.flow import Query
from penstock.flow.messages import FromEngine, ToEngine


@pytest.fixture
def links(tmp_path: Path) -> Iterator[tuple[IpcLink[FromEngine], IpcLink[ToEngine]]]:
    pipe = os.pipe()
    address = f"ipc://{tmp_path}/engine"
    engine, frontend = open_engine_link(address, pipe[0]), open_frontend_link(address, pipe[0])
    yield frontend, engine
    frontend.close()
    engine.close()
    for end in pipe:
        os.close(end)


def test_an_engine_takes_many_large_messages_in_several_turns(
    links: tuple[IpcLink[FromEngine], IpcLink[ToEngine]],
) -> None:
    """Between two turns it runs a step, so that a flood of long prompts does not stall the running sequences."""
    frontend, engine = links
    text = "x" * (ENGINE_TURN_BYTES // 4)
    for number in range(20):
        frontend.send(Query(number, "explain", {"text": text}))
    turns: list[list[int]] = []
    while sum(map(len, turns)) < 20:
        turns.append([message.id for message in engine.receive(10.0) if isinstance(message, Query)])
    assert [number for turn in turns for number in turn] == list(range(20))
    assert all(1 <= len(turn) <= 4 for turn in turns)
    assert engine.receive(0.0) == []
