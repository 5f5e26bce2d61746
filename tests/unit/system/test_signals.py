"""Interrupts that are held: when they take effect."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest

from penstock.system import signals
from penstock.system.signals import held


def strikes(said: list[str]) -> None:
    """Is interrupted twice."""
    with held():
        signal.raise_signal(signal.SIGINT)
        said.append("held")
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            said.append("held again")
        said.append("done")
    said.append("not interrupted")


def test_two_at_once_are_one_and_take_effect_at_the_end() -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        strikes(said)
    assert said == ["held", "held again", "done"]


def test_whoever_insists_is_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "INSISTS_S", -1.0)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        strikes(said)
    assert said == ["held", "done"]


def test_an_interrupt_comes_behind_an_error() -> None:
    def fails() -> None:
        with held():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("first")

    with pytest.raises(KeyboardInterrupt) as caught:
        fails()
    assert isinstance(caught.value.__context__, ValueError)


def test_other_threads_and_handlers_are_left_alone() -> None:
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(_handler_within()))
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    assert seen == [before]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert _handler_within() is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def _handler_within() -> object:
    with held():
        return signal.getsignal(signal.SIGINT)
