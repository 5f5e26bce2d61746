"""Adapters in a device's memory. A part of the memory is reserved for them and paged by rank. A thread with its own
stream fills it from copies on the host while the engine's steps continue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.adapters import AdapterCache, AdapterLoader
from penstock.adapters.extents import Extents
from penstock.adapters.loader import Loader
from penstock.errors import AdapterLoadFailed, PenstockError
from penstock.flow import Adapter
from penstock.flow.ranks import AdapterPlace
from penstock.forward.adapter_blobs import FIELDS, UNIT, PackedAdapter, most_numbers
from penstock.forward.adapter_loading import read_deltas, share_spec
from penstock.forward.host_adapters import HostAdapters
from penstock.forward.host_copy import PinnedBytes
from penstock.forward.rank_adapters import LeadingLoader
from penstock.forward.rank_forward import Followers
from penstock.kernels.cuda.low_rank import DeltaMemory
from penstock.kernels.low_rank import MOST_PARTS, num_sites
from penstock.model.weights.dense_form import Allocate
from penstock.model.weights.place import WHOLE, Shard
from penstock.startup.preflight import readable
from penstock.store.spec import ModelSpec
from penstock.system import resources

MOST_ADAPTERS = 1024  # on the device
HOST_TIMES = 4  # the host's memory for adapters, by that of the device
HOST_SHARE = 0.25  # of the memory that is free, at most


class Extent(NamedTuple):
    begin: int  # in UNITs
    size: int


class DeviceAdapter(NamedTuple):
    number: int  # of its row in the table
    num_bytes: int
    extents: Mapping[int, Extent]  # by blob
    tables: frozenset[str]  # of `low_rank.TABLES`, that it changes


class _Place(NamedTuple):
    """What is reserved for an adapter that is loaded."""

    number: int
    extents: dict[int, Extent]
    free: torch.cuda.Event | None  # when the steps that may still read this memory have ended


class DeviceCopier:
    """Loads adapters to places that others have chosen, one after the other."""

    def __init__(self, memory: DeltaMemory, most: ModelSpec, host: HostAdapters) -> None:
        """`most`: the model, or the largest share that a rank has of it."""
        self.memory = memory
        self._most, self._host = most, host
        self._places: dict[tuple[str, str], _Place] = {}
        self._thread = AdapterLoader(self._load)
        self._stream: torch.cuda.Stream | None = None

    @property
    def pending(self) -> int:
        return self._thread.pending

    def most_units(self, adapter: Adapter) -> dict[int, int]:
        """By blob, what it may take, in UNITs."""
        return {blob: numbers // UNIT for blob, numbers in most_numbers(adapter, self._most).items()}

    def start(self, adapter: Adapter, place: AdapterPlace | None) -> None:
        """Where it has no extents, there is no memory for it, and its load says so."""
        assert place is not None
        extents = {blob: Extent(*extent) for blob, extent in place.extents.items()}
        self._places[adapter.key] = _Place(place.number, extents, self._record_event())
        self._thread.start(adapter)

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Adapter, DeviceAdapter | PenstockError]]:
        found = self._thread.take_finished(wait_s)
        for adapter, _ in found:
            del self._places[adapter.key]
        return found

    def _record_event(self) -> torch.cuda.Event | None:
        """Behind all steps that are launched."""
        if not self.memory.numbers.is_cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    # --- in the thread

    def _load(self, adapter: Adapter) -> DeviceAdapter:
        place = self._places[adapter.key]
        if not place.extents:
            most = sum(most_numbers(adapter, self._most).values()) * self.memory.numbers.itemsize
            raise AdapterLoadFailed(
                f"adapter {adapter.name} may take {readable(most)}, but all adapters have "
                f"{readable(self.memory.numbers.nbytes)}: raise adapter_memory",
                param="model",
            )
        packed = self._host.get(adapter)
        extents = {}
        for number, numbers in packed.blobs:
            size, reserved = len(numbers) // UNIT, place.extents.get(number, Extent(0, 0))
            if size > reserved.size:
                raise AdapterLoadFailed(f"adapter {adapter.name} has a larger rank than {adapter.rank}", param="model")
            extents[number] = Extent(reserved.begin, size)
        self._copy(packed, place, extents)
        return DeviceAdapter(place.number, packed.num_bytes, extents, packed.tables)

    def _copy(self, packed: PackedAdapter, place: _Place, extents: Mapping[int, Extent]) -> None:
        entries = torch.from_numpy(packed.placed({blob: extent.begin for blob, extent in extents.items()}))
        if place.free is None:
            self._copy_blobs(packed, extents)
            self.memory.table[place.number].copy_(entries)
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.memory.numbers.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(place.free)
            self._copy_blobs(packed, extents)
            self.memory.table[place.number].copy_(entries.pin_memory(), non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        done.synchronize()  # without the interpreter's lock

    def _copy_blobs(self, packed: PackedAdapter, extents: Mapping[int, Extent]) -> None:
        for number, numbers in packed.blobs:
            begin = extents[number].begin * UNIT
            self.memory.numbers[begin : begin + len(numbers)].copy_(numbers, non_blocking=True)


class DeviceLoader:
    """Implements `adapters.loader.Loader`: chooses the places."""

    def __init__(self, copier: DeviceCopier) -> None:
        self._copier, self._memory = copier, copier.memory
        self._extents = Extents(len(self._memory.numbers) // UNIT)
        self._numbers = list(range(len(self._memory.table) - 1, 0, -1))  # free rows of the table; 0: of no adapter
        self._places: dict[tuple[str, str], AdapterPlace] = {}

    @property
    def pending(self) -> int:
        return self._copier.pending

    def most_bytes(self, adapter: Adapter) -> int:
        """What is reserved for it: nothing, if it can never fit; loading it says so."""
        units = sum(self._copier.most_units(adapter).values())
        return units * UNIT * self._memory.numbers.itemsize if units <= self._extents.size else 0

    def place_of(self, adapter: Adapter) -> AdapterPlace:
        """Of one that is being loaded."""
        return self._places[adapter.key]

    def start(self, adapter: Adapter) -> bool:
        extents: dict[int, tuple[int, int]] = {}
        if self.most_bytes(adapter):
            for blob, size in self._copier.most_units(adapter).items():
                begin = self._extents.take(size)
                if begin is None or not self._numbers:
                    self._give(extents | ({} if begin is None else {blob: (begin, size)}))
                    return False
                extents[blob] = begin, size
        place = AdapterPlace(self._numbers.pop() if extents else 0, extents)
        self._places[adapter.key] = place
        self._copier.start(adapter, place)
        return True

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Adapter, DeviceAdapter | PenstockError]]:
        found = self._copier.take_finished(wait_s)
        for adapter, made in found:
            place = self._places.pop(adapter.key)
            if isinstance(made, DeviceAdapter):
                self._give({blob: _rest(whole, made.extents.get(blob)) for blob, whole in place.extents.items()})
            else:
                self._give(place.extents)
                if place.extents:
                    self._numbers.append(place.number)
        return found

    def release(self, adapter: Adapter, loaded: DeviceAdapter) -> None:
        self._give(loaded.extents)
        self._numbers.append(loaded.number)

    def _give(self, extents: Mapping[int, tuple[int, int]]) -> None:
        for begin, size in extents.values():
            self._extents.give(begin, size)


DeviceAdapters = AdapterCache[DeviceAdapter]


def device_copier(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    capacity: int,
    allocate: Allocate | None = None,
    shard: Shard = WHOLE,
) -> DeviceCopier:
    """Of any rank. `capacity` in bytes of the device, which are taken at once. Raises torch.OutOfMemoryError."""
    own, most = share_spec(spec, shard), share_spec(spec, Shard(shard.world - 1, shard.world))
    memory = delta_memory(own, dtype, device, capacity, allocate)
    pinned: list[PinnedBytes] = []

    def allocate_on_host(size: int) -> Tensor:
        if device.type != "cuda":
            return torch.empty(size, dtype=torch.uint8)
        pinned.append(PinnedBytes(size))
        return pinned[-1].bytes

    host = HostAdapters(
        lambda adapter: read_deltas(adapter, spec, halves=True, shard=shard),
        spec.num_layers,
        dtype,
        int(min(HOST_TIMES * capacity, HOST_SHARE * resources.host_bytes() / shard.world)),
        allocate_on_host,
        spare_tokens=most.vocab_size - own.vocab_size,
    )
    return DeviceCopier(memory, most, host)


def device_adapters(
    copier: DeviceCopier, capacity: int, followers: Followers | None = None, world: int = 1
) -> DeviceAdapters:
    """Of the engine, or of rank 0 of several. `capacity`: that of the copier, in bytes."""
    own = DeviceLoader(copier)
    loader: Loader[DeviceAdapter] = own
    if followers is not None:
        loader = LeadingLoader(own, followers, world - 1, own.place_of)
    return AdapterCache(loader, own.most_bytes, capacity)


def delta_memory(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, capacity: int, allocate: Allocate | None = None
) -> DeltaMemory:
    """Memory of `capacity` bytes without any adapter. `spec`: of one rank of several, its share."""
    count = capacity // dtype.itemsize // UNIT * UNIT
    numbers = torch.empty(count, dtype=dtype, device=device) if allocate is None else allocate((count,), dtype)
    table = (MOST_ADAPTERS + 1, num_sites(spec.num_layers) * MOST_PARTS, FIELDS)
    q, kv, hidden = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.hidden_size
    sizes = {
        "qkv": (q, kv),
        "output": (hidden, 0),
        "gate_up": (spec.intermediate_size, spec.intermediate_size),
        "down": (hidden, 0),
        "head": (spec.vocab_size, 0),
    }
    return DeltaMemory(numbers, torch.zeros(table, dtype=torch.int32, device=device), sizes)


def _rest(whole: tuple[int, int], used: Extent | None) -> Extent:
    """What is left of it."""
    begin, size = whole
    taken = 0 if used is None else used.size
    return Extent(begin + taken, size - taken)
