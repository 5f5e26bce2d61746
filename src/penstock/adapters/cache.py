"""The adapters in memory: an LRU cache, bounded in bytes, of which those in use are pinned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from penstock.adapters.loader import Loader
from penstock.errors import AdapterLoadFailed, PenstockError
from penstock.flow import Adapter

Key = tuple[str, str]  # name and version
MOST_REMEMBERED = 4096  # adapters that are not in memory, with their counts


class Loaded(Protocol):
    """An adapter as a backend reads it."""

    @property
    def num_bytes(self) -> int: ...


L = TypeVar("L", bound=Loaded)


@dataclass(slots=True)
class _Entry(Generic[L]):
    adapter: Adapter
    state: Literal["resident", "loading", "failed", "evicted"] = "evicted"
    loaded: L | None = None
    num_bytes: int = 0  # while it is loading: what is reserved
    pins: int = 0  # sequences that run with it, or are about to
    hits: int = 0  # sequences that found it resident
    loads: int = 0
    error: str | None = None


class AdapterCache(Generic[L]):
    """Call all methods from the engine's thread."""

    def __init__(self, loader: Loader[L], most_bytes: Callable[[Adapter], int], capacity: int) -> None:
        """`most_bytes`: what an adapter can take, which is reserved while it is loaded;
        `capacity`: bytes of all."""
        self.capacity = capacity
        self._most_bytes = most_bytes
        self._loader = loader
        self._entries: OrderedDict[Key, _Entry[L]] = OrderedDict()  # least recently used first

    # --- reads

    @property
    def loading(self) -> int:
        return self._loader.pending

    @property
    def num_bytes(self) -> int:
        """In memory or reserved."""
        return sum(entry.num_bytes for entry in self._entries.values())

    def is_resident(self, adapter: Adapter) -> bool:
        entry = self._entries.get(adapter.key)
        return entry is not None and entry.state == "resident"

    def get(self, adapter: Adapter) -> L:
        """Of an adapter that is pinned."""
        loaded = self._entries[adapter.key].loaded
        assert loaded is not None, f"adapter {adapter.name} is not in memory"
        return loaded

    def describe(self) -> list[dict[str, Any]]:
        """The adapters in memory and those lately used, the latest first."""
        return [
            {
                "name": entry.adapter.name,
                "version": entry.adapter.version,
                "rank": entry.adapter.rank,
                "bytes": entry.num_bytes,
                "state": entry.state,
                "hits": entry.hits,
                "loads": entry.loads,
                "in_use": entry.pins,
                "error": entry.error,
            }
            for entry in reversed(self._entries.values())
        ]

    # --- use

    def pin(self, adapter: Adapter) -> None:
        """Keep it: a sequence runs with it, or will."""
        entry = self._entry(adapter)
        entry.pins += 1
        entry.hits += entry.state == "resident"
        self._entries.move_to_end(adapter.key)

    def unpin(self, adapter: Adapter) -> None:
        entry = self._entries[adapter.key]
        entry.pins -= 1
        assert entry.pins >= 0, f"adapter {adapter.name} is unpinned twice"

    def start(self, adapter: Adapter) -> bool:
        """Begin to load it, in place of adapters that nobody uses, the least recently used first; `take_finished`
        reports it. False: there is no room yet."""
        entry = self._entry(adapter)
        if entry.state in ("resident", "loading"):
            return True
        needed = min(self._most_bytes(adapter), self.capacity)
        idle = [one for one in self._entries.values() if one.state == "resident" and not one.pins]
        missing = self.num_bytes + needed - self.capacity
        if missing > sum(one.num_bytes for one in idle):
            return False
        for one in idle:
            if missing <= 0 and self._loader.start(adapter):
                break
            missing -= one.num_bytes
            self._drop(one)
        else:
            if not self._loader.start(adapter):
                return False
        entry.state, entry.num_bytes, entry.error = "loading", needed, None
        return True

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Adapter, PenstockError | None]]:
        """Adapters that are resident since the last call, and those that are not, with their errors."""
        return [(adapter, self._finish(adapter, made)) for adapter, made in self._loader.take_finished(wait_s)]

    def forget(self, name: str, version: str) -> dict[str, bool]:
        """Drop it from memory and from the list, unless sequences use it."""
        entry = self._entries.get((name, version))
        if entry is None:
            return {"forgotten": False, "in_use": False}
        in_use = entry.pins > 0 or entry.state == "loading"
        if not in_use:
            self._drop(entry)
            del self._entries[name, version]
        return {"forgotten": not in_use, "in_use": in_use}

    def clear(self) -> None:
        """Drop all from memory: nobody uses them, and none is being loaded."""
        assert not self.loading
        for entry in self._entries.values():
            if entry.state == "resident":
                self._drop(entry)

    def check_integrity(self, pins: Mapping[Key, int]) -> None:
        """`pins`: by whom they are held."""
        held = {key: entry.pins for key, entry in self._entries.items() if entry.pins}
        if held != dict(pins):
            raise PenstockError(f"adapters are pinned {held} times, but sequences hold {dict(pins)} pins")
        if self.num_bytes > self.capacity:
            raise PenstockError(f"adapters take {self.num_bytes} bytes of {self.capacity}")
        for entry in self._entries.values():
            if (entry.loaded is not None) != (entry.state == "resident"):
                raise PenstockError(f"adapter {entry.adapter.name} is {entry.state}, and its weights are not")
            if bool(entry.num_bytes) and entry.state not in ("resident", "loading"):
                raise PenstockError(f"adapter {entry.adapter.name} is {entry.state}, and still takes memory")

    # --- inside

    def _entry(self, adapter: Adapter) -> _Entry[L]:
        found = self._entries.get(adapter.key)
        if found is None:
            found = self._entries[adapter.key] = _Entry(adapter)
            self._forget_oldest()
        found.adapter = adapter  # its files may have moved
        return found

    def _forget_oldest(self) -> None:
        if len(self._entries) > MOST_REMEMBERED:
            gone = [key for key, entry in self._entries.items() if entry.state in ("failed", "evicted")]
            for key in gone[: len(self._entries) - MOST_REMEMBERED]:
                if not self._entries[key].pins:
                    del self._entries[key]

    def _finish(self, adapter: Adapter, made: L | PenstockError) -> PenstockError | None:
        entry = self._entries[adapter.key]
        if not isinstance(made, PenstockError):
            room = self.capacity - self.num_bytes + entry.num_bytes
            if made.num_bytes > room:
                self._loader.release(adapter, made)
                made = AdapterLoadFailed(
                    f"adapter {adapter.name} takes {made.num_bytes} bytes, but there is room for {room}: raise "
                    "adapter_memory",
                    param="model",
                )
        if isinstance(made, PenstockError):
            entry.state, entry.num_bytes, entry.error = "failed", 0, made.message
            return made
        entry.state, entry.loaded, entry.num_bytes = "resident", made, made.num_bytes
        entry.loads += 1
        return None

    def _drop(self, entry: _Entry[L]) -> None:
        if entry.loaded is not None:
            self._loader.release(entry.adapter, entry.loaded)
            entry.state, entry.loaded, entry.num_bytes = "evicted", None, 0
