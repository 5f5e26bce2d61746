from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from penstock.system.daemon_thread import run_in_daemon_thread


def test_the_result_and_the_error() -> None:
    async def main() -> None:
        assert await run_in_daemon_thread(lambda: 5, "five") == 5
        with pytest.raises(ValueError, match="wrong"):
            await run_in_daemon_thread(lambda: int("wrong"), "wrong")

    asyncio.run(main())


def test_a_process_ends_while_the_call_still_runs() -> None:
    program = """
import asyncio, threading
from penstock.system.daemon_thread import run_in_daemon_thread

async def main():
    begun = threading.Event()
    run_in_daemon_thread(lambda: (begun.set(), threading.Event().wait()), "forever")
    begun.wait()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
