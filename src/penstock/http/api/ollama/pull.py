"""POST /api/pull: downloads models of the catalogue, and reports the progress.

One model is downloaded at a time, in a thread; clients that request the same model follow the same pull. It ends when
it is complete, or when the last client has disconnected: a later pull resumes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from penstock.deployment.protocol import ServedModel
from penstock.deployment.registry import ModelRegistry
from penstock.errors import ModelNotFound, ShuttingDown
from penstock.http.api.ollama.models import details_of, with_tag
from penstock.http.api.ollama.response_bodies import OllamaStatus
from penstock.store.catalogue import Entry, find_entry
from penstock.store.progress import Progress
from penstock.store.resolve import resolve

Fetch = Callable[[str, Progress], object]  # downloads a model by its name; `resolve` outside tests

_encode = msgspec.json.Encoder().encode


class Step(NamedTuple):
    what: str  # as Progress has it
    done: int
    total: int | None


class Abandoned(Exception):
    """The last client has disconnected."""


class Pull:
    """The download of one model. All but `_progress` runs in the event loop."""

    def __init__(self, name: str, fetch: Fetch, executor: ThreadPoolExecutor, closing: Callable[[], bool]) -> None:
        """`closing`: whether the server is shutting down."""
        self.followers = 0
        self.abandoned = False
        self.step: Step | None = None
        self._closing = closing
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.fetched = self._loop.run_in_executor(executor, fetch, name, self._progress)
        self.fetched.add_done_callback(lambda _: self._changed.set())

    def _progress(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        """Called in the download's thread, which ends if this raises."""
        if self.abandoned:
            raise Abandoned
        if self._closing():
            raise ShuttingDown("the server is shutting down; a later pull resumes the download")
        self._loop.call_soon_threadsafe(self._set_step, Step(what, done_bytes, total_bytes))

    def _set_step(self, step: Step) -> None:
        self.step = step
        self._changed.set()

    async def steps(self) -> AsyncIterator[Step]:
        """The latest progress, until it is complete. Raises the error of a failed download."""
        shown = None
        while not self.fetched.done():
            if self.step is not None and self.step != shown:
                shown = self.step
                yield shown
            else:
                self._changed.clear()
                await self._changed.wait()
        await self.fetched


class Pulls:
    def __init__(self, models: ModelRegistry, closing: Callable[[], bool], fetch: Fetch | None = None) -> None:
        self._models = models
        self._closing = closing
        self._fetch: Fetch = fetch or (lambda name, progress: resolve(name, progress=progress))
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="pull")
        self._open: dict[str, Pull] = {}

    async def lines(self, requested: str) -> AsyncIterator[bytes]:
        """Of a model that `find` accepts."""
        found = self.find(requested)
        yield _line("pulling manifest")
        if not isinstance(found, Entry):
            model = details_of(found)
            yield _line(f"pulling {model.digest[:12]}", model.digest, model.size, model.size)
        else:
            async for line in self._stream_progress(found):
                yield line
            served = ", ".join(with_tag(model.card.name) for model in self._models)
            yield _line(f"pulled; this server goes on with {served}: penstock serve {found.name}")
        yield _line("success")

    def find(self, requested: str) -> Entry | ServedModel:
        """The catalogue's entry; or the served model, which is there. Raises ModelNotFound for any other."""
        with contextlib.suppress(ModelNotFound):
            return self._models.find(requested)
        if (entry := find_entry(requested)) is not None:
            return entry
        raise ModelNotFound(
            f'model "{requested[:128]}" cannot be pulled: it is not in the catalogue (`penstock list` shows it)',
            param="model",
        )

    async def _stream_progress(self, entry: Entry) -> AsyncIterator[bytes]:
        pull = self._open.get(entry.name)
        if pull is None or pull.fetched.done():
            pull = self._open[entry.name] = Pull(entry.name, self._fetch, self._executor, self._closing)
        pull.followers += 1
        try:
            async for step in pull.steps():
                yield _progress_line(entry, step)
        finally:
            pull.followers -= 1
            if pull.followers == 0 and not pull.fetched.done():
                pull.abandoned = True  # ends at its next step,
                pull.fetched.cancel()  # or does not start


def _progress_line(entry: Entry, step: Step) -> bytes:
    digest = entry.sha256 or ""
    if step.what != entry.name:  # downloaded and being checked, or another process downloads it
        return _line(step.what.partition(": ")[2] or step.what, digest, step.total, step.done)
    return _line(f"pulling {digest[:12]}", digest, step.total, step.done)


def _line(status: str, digest: str = "", total: int | None = None, completed: int | None = None) -> bytes:
    line = OllamaStatus(
        status=status,
        digest=f"sha256:{digest}" if digest else UNSET,
        total=UNSET if total is None else total,
        completed=UNSET if completed is None else completed,
    )
    return _encode(line) + b"\n"
