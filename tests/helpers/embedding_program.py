"""A program that uses `LLM` as a library in several ways, and prints what each of them changed in the process: one JSON
object, way -> changes. Run by tests/end/test_embedded.py in a fresh interpreter: `python embedding_program.py FOLDER`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from helpers.process_state import changes, open_files, snapshot

FOLDER = sys.argv[-1]
RUNNING = {"threads", "children"}  # of an LLM that is open
found: dict[str, list[str]] = {}


def forbidden() -> None:  # is not called for a `subprocess`
    found.setdefault("fork", []).append("forked")


def use(before: dict[str, Any], **settings: Any) -> None:
    """Open, generate, stream and close; raises if anything has changed meanwhile or afterwards."""
    from penstock import LLM, SamplingParams

    params = SamplingParams(max_tokens=3, ignore_eos=True, repetition_penalty=1.1, seed=1)
    with LLM(FOLDER, context=64, kv_memory="1MB", device="cpu", **settings) as llm:
        answers = llm.generate([[5, 6], [7]] * 4, params, progress=True)
        assert [len(answer.tokens) for answer in answers] == [3] * 8
        assert len(list(llm.stream([5, 6, 7], params))) > 0
        check(before, RUNNING)
    check(before)


def check(before: dict[str, Any], allowed: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    changed = {name: both for name, both in changes(before, snapshot()).items() if name not in allowed}
    if changed:
        raise AssertionError(f"changed: {changed}")


def way(function: Callable[[], None]) -> None:
    found[function.__name__] = []
    try:
        function()
    except Exception as error:
        found[function.__name__].append(f"{type(error).__name__}: {error}")


def isolated() -> None:
    before, files = snapshot(), open_files()
    use(before, isolate=True, threads=1)
    assert open_files() == files, open_files() ^ files
    assert "torch" not in sys.modules


def in_process() -> None:
    use(snapshot(), threads=2)


def with_torch() -> None:
    use(snapshot(), dtype="float32")


def two_at_once() -> None:
    from penstock import LLM, SamplingParams

    before = snapshot()
    options = {"context": 64, "kv_memory": "1MB", "device": "cpu"}
    params = SamplingParams(max_tokens=2, temperature=0.0)
    with LLM(FOLDER, threads=1, **options) as first:
        with LLM(FOLDER, threads=2, **options) as second:
            assert first.generate([5, 6], params).tokens == second.generate([5, 6], params).tokens
            check(before, RUNNING)
        check(before, RUNNING)
        first.generate([5, 6], params)
    check(before)


def in_a_thread() -> None:
    before, failed = snapshot(), []

    def work() -> None:
        try:
            use({name: value for name, value in before.items() if name != "threads"}, threads=1)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed, failed
    check(before)


def in_an_event_loop() -> None:
    async def main() -> None:
        before, ticks = snapshot(), []

        async def tick() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        use(before, threads=1)  # holds the loop up, as any blocking call does
        await asyncio.to_thread(use, {k: v for k, v in before.items() if k != "threads"}, threads=1)
        assert len(ticks) > 1
        ticking.cancel()
        check(before, {"threads"})  # the executor's

    asyncio.run(main())


def import_others(*libraries: str) -> None:
    """Before the snapshots: what they change in the process is not Penstock's doing."""
    for library in libraries:
        with suppress(ImportError):  # not on every machine
            importlib.import_module(library)


if __name__ == "__main__":
    os.register_at_fork(before=forbidden)
    import_others("numpy", "zmq")
    way(isolated)
    import_others("torch", "triton", "triton.runtime.cache")
    for one in (in_process, with_torch, two_at_once, in_a_thread, in_an_event_loop):
        way(one)
    print(json.dumps(found))
