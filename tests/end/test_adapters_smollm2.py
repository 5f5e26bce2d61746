"""A thousand adapters of rank 16 for SmolLM2 on disk, a hundred in memory, hit at random under load: every answer is
the one that the adapter gives alone, and none is lost. `make adapters` runs it; PENSTOCK_ADAPTERS=N has N of them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from helpers.adapter_engine import AdapterEngine, Job, named
from helpers.adapter_samples import write_adapter
from helpers.native_paged_model import needs_library
from penstock.flow import Adapter
from penstock.store.files import ModelFiles

pytestmark = [pytest.mark.weights, pytest.mark.adapters, needs_library]
COUNT = int(os.environ.get("PENSTOCK_ADAPTERS", "1000"))
FILES = 50  # with different numbers, 9.8 MB each: the others are links to them, with another alpha
PROMPT = random.Random(0).choices(range(100, 10_000), k=12)


def make_adapters(files: ModelFiles, folder: Path) -> list[Adapter]:
    made: list[Path] = []
    for number in range(COUNT):
        path = folder / f"a{number}"
        if number < FILES:
            made.append(write_adapter(path, files.spec, rank=16, alpha=16.0, seed=number, size=1.0, dtype="float16"))
            continue
        path.mkdir()
        source = made[number % FILES]
        (path / "adapter_model.safetensors").hardlink_to(source / "adapter_model.safetensors")
        config = json.loads((source / "adapter_config.json").read_text())
        config["lora_alpha"] = 16.0 + 2 * (number // FILES)
        (path / "adapter_config.json").write_text(json.dumps(config))
        made.append(path)
    return [named(path) for path in made]


def test_a_thousand_adapters(smollm2: ModelFiles, tmp_path: Path) -> None:
    adapters = make_adapters(smollm2, tmp_path)
    options = {"kv_memory": "512MiB", "context": 1024}
    single = AdapterEngine("smollm2", **options, max_sequences=1, adapter_memory="100MB")
    alone = {one.name: single.run([Job(PROMPT, one, max_output=8)])[0].tokens for one in adapters}
    engine = AdapterEngine("smollm2", **options, max_sequences=32, adapter_memory=f"{COUNT // 10 * 10}MB")
    draw, ids = random.Random(1), list[str]()
    asked = [*adapters, *(draw.choice(adapters) for _ in range(COUNT))]
    draw.shuffle(asked)
    while len(ids) < len(asked) or engine.loop.has_work:
        arriving = asked[len(ids) : len(ids) + draw.choice((0, 1, 2, 5))]
        ids += [engine.submit(Job(PROMPT, one, max_output=8)) for one in arriving]
        engine.step()
    engine.finish()
    assert [engine.answers[id].tokens for id in ids] == [alone[one.name] for one in asked]
    assert len({tuple(one) for one in alone.values()}) > COUNT / 2  # they say different things
    known = engine.query("adapters")
    assert sum(one["state"] == "resident" for one in known) <= COUNT // 10 + 1
    assert sum(one["loads"] for one in known) >= COUNT
