"""How long decoding a hostile body stalls the event loop of the same process.

    python bench/stalls_json.py

For each body: its size, the longest delay of a task that wakes every millisecond, and the result.
"""

from __future__ import annotations

import asyncio
import gc
import time

from penstock.errors import InvalidRequest
from penstock.http.api.openai import chat
from penstock.http.parse.schema import parse

SIZE = 16_000_000


def bodies() -> dict[str, bytes]:
    inside = {
        "lists in lists": b"[" * (SIZE // 2) + b"]" * (SIZE // 2),
        "130,000 lists": b"[" + (b"," + b" " * 118).join([b"[]"] * 130_000) + b"]",
        "43,000 objects": b"[" + b",".join([b'{"a":{}}'] * 43_000) + b"]",
        "100,000 lists of numbers": b"[" + b",".join([b"[1.5,2.5,3.5]"] * 100_000) + b"]",
        "numbers of 4,300 digits": b"[" + b",".join([b"9" * 4300] * (SIZE // 4301)) + b"]",
        "one number": b"9" * SIZE,
        "white space": b" " * SIZE + b"[]",
        "a text of brackets and quotes": b'"' + b'[{\\"' * (SIZE // 4) + b'"',
        "a text of escapes": b'"' + b"\\n" * (SIZE // 2) + b'"',
        "a text of umlauts": b'"' + "ü".encode() * (SIZE // 2) + b'"',
    }
    return {name: b'{"model":"m","messages":' + value + b"}" for name, value in inside.items()}


def outcome(raw: bytes) -> str:
    try:
        parse(chat.REQUEST, raw)
    except InvalidRequest as error:
        return error.message[:60]
    return "taken"


async def measure(raw: bytes) -> tuple[float, str]:
    longest, done = 0.0, False

    async def beat() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not done:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.05)
    longest = 0.0
    said = await asyncio.to_thread(outcome, raw)
    await asyncio.sleep(0.01)
    done = True
    await beating
    return longest, said


def main() -> None:
    gc.collect()
    gc.freeze()  # as the server does
    for name, raw in bodies().items():
        stall_s, said = asyncio.run(measure(raw))
        print(f"{name:30} {len(raw) / 1e6:5.1f} MB {1000 * stall_s:7.1f} ms  {said}")


if __name__ == "__main__":
    main()
