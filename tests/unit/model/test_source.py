from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.model.weights.source import MappedFile


def resident_kib(path: Path) -> int:
    """Of the mappings of a file in this process."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith("Rss:"):
            total += int(line.split()[1]) if counts else 0
        elif "-" in line.split(" ", 1)[0]:
            counts = line.endswith(str(path))
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_reading_a_tensor_brings_none_back_that_was_released(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 4096)
    file, tensors = MappedFile(path), [(0, 40_000), (40_000, 60_000), (60_000, 1 << 20)]
    for begin, end in tensors:
        assert file.bytes(begin, end).sum() > 0
        assert resident_kib(path) > 0
        file.release(begin, end)
        assert resident_kib(path) == 0
