"""Decisions of the control process about its frontends, without processes."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.flow.identity import Source
from penstock.frontends import supervisor
from penstock.frontends.messages import Counts, Fence, PromptSent, ServeAdapters
from penstock.frontends.supervisor import FIRST_WAIT_S, HEALTHY_AFTER_S, LONGEST_WAIT_S, FrontendSet
from penstock.http.port import bind
from penstock.settings import load


def frontends(tmp_path: Path, count: int = 2) -> FrontendSet:
    settings = load({"port": 0, "frontends": count}, environ={})
    listener = bind(settings.serve, shared=True)
    made = FrontendSet(settings, count, listener, tmp_path)
    listener.close()
    return made


class Process:
    """One that has died."""

    def wait(self) -> int:
        return -9

    def poll(self) -> int:
        return -9


def test_a_frontend_that_keeps_dying_is_replaced_ever_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def run() -> None:
        made = frontends(tmp_path, 1)
        (slot,) = made._slots
        slot.process = cast(Any, Process())
        monkeypatch.setattr(made, "_spawn", lambda slot: None)
        monkeypatch.setattr(made, "_start", lambda slot: None)
        monkeypatch.setattr(supervisor.asyncio, "sleep", sleep)
        for _ in range(9):
            await made._replace(slot)
        assert slot.generation == 9  # so that no sequence number is used twice
        slot.since = time.monotonic() - HEALTHY_AFTER_S - 1
        await made._replace(slot)
        slot.listener.close()

    asyncio.run(run())
    assert waits[:4] == [FIRST_WAIT_S * 2**power for power in range(4)]
    assert waits[7:] == [LONGEST_WAIT_S, LONGEST_WAIT_S, FIRST_WAIT_S]


def test_a_frontend_that_hangs_holds_up_the_control_process_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FENCE_S", 0.01)
    asked: list[int] = []

    class Peer:
        def __init__(self, *, hangs: bool) -> None:
            self.hangs = hangs
            self.counts = Counts(open=[("tiny", 2)], tasks=3, open_circuits=["up"])

        async def fence(self, message: Fence | ServeAdapters) -> None:
            asked.append(message.number)
            if self.hangs:
                await asyncio.Event().wait()

    async def run() -> None:
        made = frontends(tmp_path)
        await made.fence()  # there are no frontends yet
        for slot, hangs in zip(made._slots, (True, False), strict=True):
            slot.peer = cast(Any, Peer(hangs=hangs))
        await made.fence()
        assert len(asked) == 2
        assert len(asyncio.all_tasks()) <= 2  # the late one is cancelled
        assert (dict(made.open_by_model()), made.tasks(), made._open_circuits()) == ({"tiny": 4}, 6, {"up"})
        for slot in made._slots:
            slot.listener.close()

    asyncio.run(run())


def test_what_one_has_sent_is_passed_on_to_the_others(tmp_path: Path) -> None:
    made = frontends(tmp_path, 4)
    told: list[int] = []
    for slot, hears in zip(made._slots[:3], (True, True, False), strict=True):
        send = lambda message, number=slot.number: told.append(number)  # noqa: E731
        slot.peer = cast(Any, SimpleNamespace(hears=hears, send=send))
    made._pass_on(made._slots[0], PromptSent(Source("m", 0), b""))
    assert told == [2]
    for slot in made._slots:
        slot.listener.close()


@pytest.mark.parametrize(
    ("silent_s", "listens", "hang_s", "ended"),
    [
        (20.0, True, 300.0, False),
        (31.0, True, 300.0, True),  # a share of all connections would wait for it
        (31.0, False, 300.0, False),  # it starts: its imports take as long as the machine is busy
        (301.0, False, 300.0, True),
        (11.0, True, 10.0, True),
    ],
)
def test_a_frontend_that_says_nothing_is_ended(
    tmp_path: Path, silent_s: float, listens: bool, hang_s: float, ended: bool
) -> None:
    made = frontends(tmp_path)
    made._settings = load({"hang_s": hang_s}, environ={})
    killed: list[int] = []
    for slot in made._slots:
        listening = asyncio.Event()
        if listens:
            listening.set()
        seen = time.monotonic() - (silent_s if slot.number == 1 else 1.0)
        slot.peer = cast(Any, SimpleNamespace(gone=False, seen=seen, listening=listening))
        slot.process = cast(Any, SimpleNamespace(kill=lambda number=slot.number: killed.append(number)))
        slot.listener.close()
    made._end_silent()
    assert killed == ([1] if ended else [])


def test_a_control_process_that_was_held_up_itself_ends_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have said meanwhile is not read yet."""
    made, looks, now = frontends(tmp_path, 1), 0, 0.0

    def look() -> None:
        nonlocal looks
        looks += 1

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += 40.0 if now == 0 else seconds
        if now > 45:
            raise asyncio.CancelledError

    monkeypatch.setattr(supervisor.asyncio, "sleep", sleep)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now)
    monkeypatch.setattr(made, "_end_silent", look)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(made._watch())
    assert looks == 5  # after 41 to 45 s
    made._slots[0].listener.close()


def test_only_variables_that_the_settings_name_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "s3cret")
    monkeypatch.setenv("OTHER_KEY", "hidden")
    settings = SimpleNamespace(
        models=[SimpleNamespace(api_key_env="UPSTREAM_KEY"), SimpleNamespace(api_key_env=None)],
        safety=[SimpleNamespace(hook_key_env="MISSING")],
    )
    assert supervisor._variables(cast(Any, settings)) == {"UPSTREAM_KEY": "s3cret"}


def test_all_frontends_listen_on_one_port(tmp_path: Path) -> None:
    made = frontends(tmp_path, 3)
    ports = {slot.listener.getsockname()[1] for slot in made._slots}
    assert len(ports) == 1
    assert [slot.number for slot in made._slots] == [1, 2, 3]
    assert all(slot.listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) for slot in made._slots)
    for slot in made._slots:
        slot.listener.close()
