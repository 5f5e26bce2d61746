"""A thousand adapters of rank 16 for SmolLM2 on disk, a hundred in memory, hit at random under load: every answer is
the one that the adapter gives alone, and none is lost. `make adapters` runs it; PENSTOCK_ADAPTERS=N has N of them."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from helpers.adapter_engine import AdapterEngine, Job, named
from helpers.adapter_samples import write_adapter
from helpers.native_paged_model import needs_library
from penstock.flow import Adapter
from penstock.store.files import ModelFiles
from penstock.store.peft_adapter import CONFIG, WEIGHTS

pytestmark = [pytest.mark.weights, pytest.mark.adapters, needs_library]
COUNT = int(os.environ.get("PENSTOCK_ADAPTERS", "1000"))
DISK_BYTES = 9_800_000  # of each
PROMPT = random.Random(0).choices(range(100, 10_000), k=12)


def make_adapters(files: ModelFiles, folder: Path) -> list[Adapter]:
    """Random matrices each. All but the first have its magnitudes with signs of their own: drawn ten times as fast."""
    first = write_adapter(folder / "a0", files.spec, rank=16, alpha=16.0, size=1.0, dtype="float16")
    config, data = ((first / name).read_bytes() for name in (CONFIG, WEIGHTS))
    begin = 8 + int.from_bytes(data[:8], "little")
    numbers = np.frombuffer(data, np.uint16, offset=begin)
    for number in range(1, COUNT):
        path = folder / f"a{number}"
        path.mkdir()
        signs = np.random.default_rng(number).integers(0, 2, len(numbers), dtype=np.uint16) << 15
        (path / CONFIG).write_bytes(config)
        with (path / WEIGHTS).open("wb") as file:
            file.write(data[:begin])
            (numbers ^ signs).tofile(file)
    return [named(folder / f"a{number}") for number in range(COUNT)]


@pytest.fixture
def adapters(smollm2: ModelFiles) -> Iterator[list[Adapter]]:
    """10 GB are not left for the next runs to remove."""
    with TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free
        assert free > 1.1 * COUNT * DISK_BYTES, f"{folder} has {free / 1e9:.1f} GB free: set TMPDIR to another disk"
        yield make_adapters(smollm2, Path(folder))


def test_a_thousand_adapters(adapters: list[Adapter]) -> None:
    options = {"kv_memory": "512MiB", "context": 1024}
    single = AdapterEngine("smollm2", **options, max_sequences=1, adapter_memory="100MB")
    start = time.perf_counter()
    alone = {one.name: single.run([Job(PROMPT, one, max_output=8)])[0].tokens for one in adapters}
    alone_s = time.perf_counter() - start
    room = COUNT // 10
    size = max(one["bytes"] for one in single.query("adapters"))
    engine = AdapterEngine("smollm2", **options, max_sequences=32, adapter_memory=str(room * size))
    draw, ids, most = random.Random(1), list[str](), 0
    asked = [*adapters, *(draw.choice(adapters) for _ in range(COUNT))]
    draw.shuffle(asked)
    start = time.perf_counter()
    while len(ids) < len(asked) or engine.loop.has_work:
        arriving = asked[len(ids) : len(ids) + draw.choice((0, 1, 2, 5))]
        ids += [engine.submit(Job(PROMPT, one, max_output=8)) for one in arriving]
        engine.step()
        most = max(most, engine.loop.scheduler.stats()["running"])
    load_s = time.perf_counter() - start
    engine.finish()
    assert [engine.answers[id].tokens for id in ids] == [alone[one.name] for one in asked]
    different = len({tuple(one) for one in alone.values()})
    known = engine.query("adapters")
    resident = sum(one["state"] == "resident" for one in known)
    hits, loads = (sum(one[name] for one in known) for name in ("hits", "loads"))
    print(
        f"\n{COUNT} adapters, {different} different answers: alone {alone_s:.0f} s; {len(asked)} requests in "
        f"{load_s:.0f} s, up to {most} at once, {hits} found theirs in memory, {loads} loads, {resident} in memory at "
        "the end"
    )
    assert different > COUNT / 2
    assert resident <= room
    assert loads >= COUNT
