"""Threads in which a server makes its calls to a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from penstock.errors import StorageUnavailable

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

PATIENCE_S = 20.0  # longer than any statement may take (`database`): the threads are busy with others that wait


class DatabaseThreads:
    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(
        self, call: Callable[Arguments, Answer], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Answer:
        """Raises StorageUnavailable if there is no answer in time; the call may still have its effect then."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments, **options))
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await running
        except TimeoutError:
            raise StorageUnavailable("the database does not answer in time") from None

    def close(self) -> None:
        """Does not wait for calls that are under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
