"""The thread that loads adapters gives way to the steps beside it; what goes wrong there is said to clients."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from penstock.adapters import AdapterLoader
from penstock.adapters.loader import NICENESS
from penstock.errors import AdapterLoadFailed, ModelInvalid
from penstock.flow import Adapter


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_it_has_a_lower_priority_than_the_thread_that_asks() -> None:
    def own() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = own()
    loader = AdapterLoader(lambda adapter: own())
    loader.start(Adapter("a", "00", "/a", 1))
    [(_, found)] = loader.take_finished(wait_s=10.0)
    assert found == min(before + NICENESS, 19)
    assert own() == before


@pytest.mark.parametrize(
    ("path", "message", "shown"),
    [
        (
            "/secret/tone",
            "/secret/tone/adapter_model.safetensors is cut",
            "adapter a: adapter_model.safetensors is cut",
        ),
        ("/secret/tone.gguf", "/secret/tone.gguf is no GGUF file", "adapter a: tone.gguf is no GGUF file"),
        ("/secret/tone", "adapter a has changed on disk", "adapter a has changed on disk"),
    ],
)
def test_errors_name_the_adapter_and_not_its_folder(path: str, message: str, shown: str) -> None:
    def load(adapter: Adapter) -> None:
        raise ModelInvalid(message)

    loader = AdapterLoader(load)
    loader.start(Adapter("a", "00", path, 1))
    [(_, error)] = loader.take_finished(wait_s=10.0)
    assert isinstance(error, AdapterLoadFailed)
    assert error.message == shown
