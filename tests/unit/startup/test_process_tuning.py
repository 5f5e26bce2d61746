"""Process-wide changes: made in a process of our own, and in no other."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from penstock.errors import InvalidSetting
from penstock.startup import process_tuning as module
from penstock.startup import torch_process
from penstock.system import ownership


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of the changes themselves."""
    made: list[str] = []

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        made.append(name)
        yield

    monkeypatch.setattr(module.gc_control, "paused", lambda: noted("pause"))
    monkeypatch.setattr(module.bytecode, "keep", lambda: noted("keep"))
    monkeypatch.setattr(module.bytecode, "compiled_ahead", lambda: noted("fork"))
    monkeypatch.setattr(module.gc_control, "freeze_startup_objects", lambda: made.append("freeze"))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: made.append(f"{count} threads"))
    return made


def start(calls: list[str], *, cuda: bool) -> None:
    with module.fast_start(), module.fast_import((lambda: calls.append("wake")) if cuda else None):
        pass
    torch_process.set_torch_threads(3)
    module.freeze_startup_objects()


def test_a_process_of_somebody_else_is_left_alone(calls: list[str]) -> None:
    assert not ownership.owns_process()
    start(calls, cuda=True)
    assert calls == []
    assert gc.isenabled()


@pytest.mark.parametrize("cuda", [False, True])
def test_a_process_of_our_own_is_tuned(cuda: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_claimed", False)
    ownership.claim_process()
    start(calls, cuda=cuda)
    assert calls == ["pause", "keep", "fork", *["wake"] * cuda, "3 threads", "freeze"]


def test_threads_that_only_a_global_change_could_give_are_refused(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_process.check_torch_threads(None)
    torch_process.check_torch_threads(torch.get_num_threads())
    with pytest.raises(InvalidSetting, match=r"torch\.set_num_threads\(77\) first, or .*isolate") as caught:
        torch_process.check_torch_threads(77)
    assert caught.value.param == "threads"
    monkeypatch.setattr(ownership, "_claimed", True)
    torch_process.check_torch_threads(77)
