"""Keys of a running server: the store in threads, and the keys in memory that follow it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import PenstockError
from penstock.gateway.keys.stored_keys import StoredKeys

if TYPE_CHECKING:
    from penstock.gateway.keys.store import KeyStore

logger = logging.getLogger(__name__)

POLL_S = 0.5  # between looks for changes of other programs, which act within a second
THREADS = 2  # so that a slow administrative call does not delay the poll

Answer = TypeVar("Answer")


class KeyManager:
    """Belongs to one event loop."""

    def __init__(self, store: KeyStore, keys: StoredKeys | None = None) -> None:
        self.store = store
        self.keys = StoredKeys() if keys is None else keys
        self.available = True  # whether the database answered the last time
        self.on_poll: Callable[[], None] = lambda: None  # keys may have changed or expired
        self.on_change: Callable[[], Awaitable[None]] | None = None  # other processes of the server learn of it
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="keys")
        self._refreshing = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load all keys. Raises StorageUnavailable."""
        await self._refresh()
        self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, call: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        """A method of the store, in a thread."""
        return await self._in_thread(call, *arguments, **options)

    async def change(self, call: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        """The same for one that changes keys or tenants: when it returns, this server acts on it."""
        answer = await self._in_thread(call, *arguments, **options)
        await self.refresh()
        if self.on_change is not None:
            await self.on_change()
        return answer

    async def refresh(self) -> None:
        """Act on what has changed by now."""
        await self._refresh()
        self.on_poll()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._refresh()
                self._note(available=True)
            except PenstockError:
                self._note(available=False)
            except Exception:
                logger.exception("keys could not be refreshed")
            self.on_poll()

    def _note(self, *, available: bool) -> None:
        if available != self.available:
            state = "answers again" if available else "does not answer: known keys stay valid, changes are not seen"
            logger.warning("the database of keys %s", state)
        self.available = available

    async def _refresh(self) -> None:
        async with self._refreshing:
            self.keys.apply(await self._in_thread(self.store.changes_since, self.keys.number))

    async def _in_thread(self, call: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments, **options))
