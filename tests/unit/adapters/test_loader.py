"""The thread that loads adapters gives way to the steps beside it."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from penstock.adapters import AdapterLoader
from penstock.adapters.loader import NICENESS
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
