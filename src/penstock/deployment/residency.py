"""Which local models of a server are in memory.

    UNLOADED ──load──► READY ──idle, or another needs the room──► UNLOADED
                       READY ──sleep──► ASLEEP ──wake──► READY

A request for a model that is not loaded, or asleep, waits until it is ready. If there is no room, models that are not
pinned make way, the least recently used first: a busy one takes no more requests (they wait for its return), finishes
those it has, and is unloaded then. So nothing is lost when models are swapped under load. A load that has begun
continues if its client disconnects, since other clients may wait for it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import State
from penstock.errors import InvalidRequest, ModelNotFound, OutOfMemory, PenstockError, ShuttingDown
from penstock.startup.preflight import readable

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks for idle models
DRAIN_LOOK_S = 0.01


@dataclass(slots=True, eq=False)
class Coming:
    """A model that is being loaded or woken for the requests that wait for it."""

    done: asyncio.Future[Exception | None]  # what kept it from that
    waiting: int = 0  # requests
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class Resident:
    """A model, and how it may be loaded and unloaded."""

    model: LocalModel
    needed_bytes: int = 0  # of the host's memory; 0: not known, or on a GPU
    gpu_fractions: Mapping[int, float] = field(default_factory=dict)  # of the memory of each GPU
    pinned: bool = False
    keep_alive_s: float | None = None  # idle seconds after which it is unloaded; None: it stays
    keeps_replicas: bool = False  # `min_replicas` is 1 or more: no request's keep_alive unloads it
    used: float = 0.0  # when a request last came or ended
    expires_s: float | None = field(default=None)  # keep_alive of the last request that named one; else `keep_alive_s`
    changing: bool = False  # it is being loaded, or finishes its requests to be unloaded: new ones wait
    coming: Coming | None = None

    @property
    def loaded(self) -> bool:
        return bool(self.model.replicas.replicas)

    @property
    def asleep(self) -> bool:
        return self.model.replicas.state is State.ASLEEP

    @property
    def sleepers(self) -> bool:
        """Whether any replica is asleep: one that died meanwhile has come back awake."""
        return any(replica.state is State.ASLEEP for replica in self.model.replicas.replicas)


class Residency:
    """One per server. Belongs to one event loop."""

    def __init__(
        self,
        hang_s: float,
        free_bytes: Callable[[], int],
        *,
        max_loaded: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`free_bytes` is the host's free memory. `max_loaded`: models at once; None: as many as fit."""
        self._hang_s = hang_s
        self._free_bytes = free_bytes
        self._max_loaded = max_loaded
        self._clock = clock
        self._residents: dict[str, Resident] = {}
        self._changing = asyncio.Lock()  # one model is loaded or unloaded at a time, in the order of the requests

    def add(self, resident: Resident) -> None:
        self._residents[resident.model.name] = resident
        resident.expires_s = resident.keep_alive_s
        resident.used = self._clock()
        resident.model.ensure_loaded = lambda: self.ensure_loaded(resident)
        resident.model.end_waiting = lambda why: _end_waiting(resident, why)
        if not resident.pinned and not resident.keeps_replicas:
            resident.model.keep_alive = lambda seconds: self._keep_alive(resident, seconds)

    def find(self, model: LocalModel) -> Resident:
        return self._residents[model.base.name]

    def expires_in(self, model: LocalModel) -> float | None:
        """Seconds until the model is unloaded if no request comes; None: never, or it is not loaded."""
        resident = self._residents.get(model.base.name)
        if resident is None or resident.pinned or resident.expires_s is None or not resident.loaded:
            return None
        return max(0.0, resident.used + resident.expires_s - self._clock())

    async def remove(self, model: LocalModel) -> None:
        """Finishes its requests first. Requests that still wait for the model to be loaded end in ModelNotFound."""
        resident = self.find(model)
        model.removed = True
        async with self._changing:
            await self._unload(resident, "the model is removed")
            del self._residents[model.name]

    async def ensure_loaded(self, resident: Resident) -> None:
        """Called for each request: returns at once if the model is there. Raises what keeps it from being loaded."""
        resident.used = self._clock()
        if resident.loaded and not resident.changing and not resident.sleepers:
            return
        if (coming := resident.coming) is None:
            coming = resident.coming = Coming(asyncio.get_running_loop().create_future())
            coming.task = asyncio.create_task(self._bring(resident, coming))
        coming.waiting += 1
        try:
            error = await asyncio.shield(coming.done)
        finally:
            coming.waiting -= 1
        if isinstance(error, PenstockError):  # one for each request: they are changed on the way to the client
            raise type(error)(error.message, param=error.param)
        if error is not None:
            raise error
        resident.used = self._clock()

    async def _bring(self, resident: Resident, coming: Coming) -> None:
        """Load or wake it, and hold on to it until all that waited for it have been submitted."""
        error: Exception | None = None
        async with self._changing:
            try:
                await self._load_or_wake(resident)
            except Exception as failure:
                error = failure
            resident.coming = None
            if not coming.done.done():
                coming.done.set_result(error)
            while coming.waiting:
                await asyncio.sleep(0)

    async def _load_or_wake(self, resident: Resident) -> None:
        if resident.model.removed:
            raise ModelNotFound(f"the model {resident.model.name!r} has been removed", param="model")
        if not resident.loaded:
            await self._make_room(resident)
            await self._load(resident)
        elif resident.sleepers:
            if resident.asleep:
                await self._make_room(resident)
            await resident.model.replicas.wake()

    async def unload(self, model: LocalModel) -> None:
        """On request; finishes its requests first. Raises InvalidRequest for a pinned model."""
        _check_not_adapter(model)
        resident = self.find(model)
        if resident.pinned:
            raise InvalidRequest(f"{model.name} is pinned: it stays loaded", param="model")
        async with self._changing:
            await self._unload(resident, "an operator asked for it")

    async def sleep(self, model: LocalModel) -> None:
        """Release the memory of a model, which keeps its processes. Finishes its requests first."""
        _check_not_adapter(model)
        resident = self.find(model)
        async with self._changing:
            if resident.loaded and not resident.asleep:
                async with self._drained(resident):
                    await model.replicas.sleep()

    async def run(self) -> None:
        """Unload models that have been idle for long, until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.unload_idle()

    async def unload_idle(self) -> None:
        for resident in list(self._residents.values()):
            if self._is_idle(resident):
                async with self._changing:
                    if self._is_idle(resident):
                        logger.info("unloading %s: idle for %.0f s", resident.model.name, resident.expires_s)
                        await self._unload(resident, f"idle for {resident.expires_s:.0f} s")

    def _is_idle(self, resident: Resident) -> bool:
        if resident.model.replicas.open:
            resident.used = self._clock()
            return False
        left = self.expires_in(resident.model)
        return resident.loaded and left is not None and left <= 0

    def _keep_alive(self, resident: Resident, seconds: float | None) -> None:
        resident.expires_s = seconds

    async def _load(self, resident: Resident) -> None:
        replicas = resident.model.replicas
        began = self._clock()
        resident.changing = True
        try:
            replicas.spawn()
            await replicas.start()
        finally:
            resident.changing = False
        replicas.supervise(self._hang_s)
        logger.info("loaded %s in %.1f s", resident.model.name, self._clock() - began)
        replicas.tell_scaled(0, len(replicas.replicas), "a request or an operator needs it")

    async def _unload(self, resident: Resident, reason: str) -> None:
        async with self._drained(resident):
            count = len(resident.model.replicas.replicas)
            await resident.model.replicas.unload()
        if count:
            resident.model.replicas.tell_scaled(count, 0, reason)

    @contextlib.asynccontextmanager
    async def _drained(self, resident: Resident) -> AsyncIterator[None]:
        """New requests wait, those under way have ended."""
        resident.changing = True
        try:
            while resident.model.replicas.open:
                await asyncio.sleep(DRAIN_LOOK_S)
            yield
        finally:
            resident.changing = False

    async def _make_room(self, wanted: Resident) -> None:
        """Unload others until the model fits. Raises OutOfMemory, which says what would have to go; if it would not fit
        without them either, they stay."""
        others = self._in_memory(pinned=False)
        self._check_room(wanted, self._in_memory(pinned=True), sum(map(_used_bytes, others)))
        while others and self._lack(wanted, self._in_memory()) is not None:
            oldest = min(others, key=lambda one: (bool(one.model.replicas.open), one.used))
            logger.info("unloading %s to make room for %s", oldest.model.name, wanted.model.name)
            await self._unload(oldest, f"{wanted.model.name} needs its room")
            others = self._in_memory(pinned=False)
        self._check_room(wanted, self._in_memory())

    def _check_room(self, wanted: Resident, loaded: Sequence[Resident], freed: int = 0) -> None:
        if (lack := self._lack(wanted, loaded, freed)) is not None:
            raise OutOfMemory(f"{wanted.model.name} cannot be loaded: {lack}", param="model")

    def _in_memory(self, *, pinned: bool | None = None) -> list[Resident]:
        """Models that are loaded and not asleep. `pinned`: only pinned or only unpinned ones; None: both."""
        loaded = [one for one in self._residents.values() if one.loaded and not one.asleep]
        return loaded if pinned is None else [one for one in loaded if one.pinned is pinned]

    def _lack(self, wanted: Resident, loaded: Sequence[Resident], freed: int = 0) -> str | None:
        """What keeps it from being loaded beside `loaded`, once others have freed so many bytes, and what would have to
        go; None: nothing."""
        named = ", ".join(one.model.name for one in loaded)
        if self._max_loaded is not None and len(loaded) >= self._max_loaded:
            return f"{self._max_loaded} models may be loaded at once, and {named} are pinned: unpin one of them"
        for gpu, fraction in wanted.gpu_fractions.items():
            held = {one.model.name: one.gpu_fractions[gpu] for one in loaded if gpu in one.gpu_fractions}
            if sum(held.values()) + fraction > 1.0 + 1e-9:
                holders = ", ".join(f"{name} {share:.2f}" for name, share in held.items())
                return (
                    f"it takes {fraction:.2f} of the memory of GPU {gpu} beside pinned models ({holders}): one of them "
                    "would have to go"
                )
        free = self._free_bytes()
        if wanted.needed_bytes > free + freed:
            sizes = {one.model.name: _used_bytes(one) for one in loaded}
            holders = ", ".join(f"{name} {readable(size)}" for name, size in sizes.items())
            more = f", {readable(freed)} more without the models that are not pinned" if freed else ""
            return (
                f"it needs {readable(wanted.needed_bytes)}, and {readable(free)} are free{more}: "
                f"{readable(wanted.needed_bytes - free - freed)} would have to go; "
                + (f"loaded and pinned are {holders}" if holders else "no pinned model is loaded")
            )
        return None


def _end_waiting(resident: Resident, why: str) -> None:
    """The server stops: requests do not wait for the model any longer."""
    if resident.coming is not None and not resident.coming.done.done():
        resident.coming.done.set_result(ShuttingDown(why))


def _check_not_adapter(model: LocalModel) -> None:
    if model.base is not model:
        raise InvalidRequest(
            f"{model.name} is an adapter of {model.base.name}: name that, or remove the adapter", param="model"
        )


def _used_bytes(resident: Resident) -> int:
    replicas = resident.model.replicas.replicas
    return sum(one.facts.get("weights_bytes", 0) + one.facts.get("kv_bytes", 0) for one in replicas)
