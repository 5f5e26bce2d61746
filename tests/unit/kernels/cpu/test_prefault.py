"""Which pages are backed ahead of use, and that none of it is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.kernels.cpu.arena import PAGE, Arena
from penstock.kernels.cpu.prefault import Prefault


class Recorded:
    def __init__(self, works: bool = True) -> None:
        self.works = works
        self.pages: list[int] = []

    def __call__(self, address: int, length: int) -> bool:
        assert length == PAGE
        self.pages.append(address)
        return self.works


def blocks(count: int) -> np.ndarray:
    """[count] of half a page."""
    return Arena().empty(count, PAGE // 2, dtype=np.uint8)


def test_what_is_in_use_and_some_more_is_backed_once() -> None:
    memory, populate = blocks(20), Recorded()
    prefault = Prefault(memory, populate)
    prefault.wait()
    begin = memory.ctypes.data
    assert populate.pages == [begin + place * PAGE for place in range(1)]  # block 0, which is nobody's, and one
    for highest in (5, 2, 5):
        prefault.cover(highest)
        prefault.wait()
        assert populate.pages == [begin + place * PAGE for place in range(4)]
    prefault.cover(19)
    prefault.wait()
    assert populate.pages == [begin + place * PAGE for place in range(10)]  # and nothing beyond the last


def test_where_the_system_cannot_it_is_asked_once() -> None:
    populate = Recorded(works=False)
    prefault = Prefault(blocks(20), populate)
    for highest in range(20):
        prefault.wait()
        prefault.cover(highest)
    prefault.wait()
    assert len(populate.pages) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_what_was_written_stays_and_the_rest_is_resident() -> None:
    memory = blocks(8)
    memory[1].fill(7)
    prefault = Prefault(memory)
    prefault.cover(7)
    prefault.wait()
    assert (memory[1] == 7).all()
    if prefault._populated_bytes:  # kernels before 5.14 cannot
        assert _resident_kib(memory.ctypes.data) >= 4 * PAGE // 1024


def _resident_kib(address: int) -> int:
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        begin, dash, end = line.split()[0].partition("-")
        if dash and int(begin, 16) <= address < int(end, 16):
            return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    raise AssertionError
