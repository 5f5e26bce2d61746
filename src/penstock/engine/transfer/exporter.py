"""The side of a transfer that has the blocks: listens, and sends them from threads beside the engine's loop.

The loop holds the blocks of a transfer (`Lease`), so that none is evicted or written meanwhile. A thread copies one
block at a time, under the lease's lock: once the lease is closed, no thread reads its blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.cache import Holding
from penstock.engine.transfer.channel import STALL_S, Channel, transfer_key
from penstock.engine.transfer.messages import Block, End, Fetch, Offer, Refusal, Taken, ToExporter, TransferError
from penstock.engine.transfer.segment import Segment
from penstock.flow.transfer import TransferSetup

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16  # at once, those that have not proved who they are included
RETRY_S = 0.1
_CREDENTIALS = struct.Struct("3i")  # process, user and group of the other end


class Lease:
    """The blocks of one transfer, from `kv_export` to `kv_export_end`."""

    def __init__(self, holding: Holding, memory: Sequence[NDArray[np.uint8]]) -> None:
        self.holding = holding
        self._memory = memory
        self._lock = threading.Lock()
        self._open = True

    def items(self, wanted: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """Those of the wanted (group, index) that it has, in the order of the chain."""
        pairs = zip(wanted, self.holding.blocks, strict=True)
        found = [(index, group) for group, (some, held) in enumerate(pairs) for index in some if index in held]
        return [(group, index) for index, group in sorted(found)]

    def copy(self, group: int, index: int, into: NDArray[np.uint8]) -> None:
        with self._lock:
            if not self._open:
                raise TransferError("cancelled", "the transfer was ended")
            np.copyto(into, self._memory[group][self.holding.blocks[group][index]])

    def close(self) -> None:
        with self._lock:
            self._open = False


class Exporter:
    def __init__(
        self,
        setup: TransferSetup,
        secret: bytes,
        memory: Sequence[NDArray[np.uint8]],
        layout: str,
        stall_s: float = STALL_S,
    ) -> None:
        """Listens from now on. `memory`: [groups] of [blocks, bytes]. Raises OSError."""
        self._key = transfer_key(secret)
        self._memory = memory
        self._layout = layout
        self._stall_s = stall_s
        self._local = setup.transport == "shared-memory"
        self._leases: dict[str, Lease] = {}  # written by the engine's loop, read by threads
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if self._local:
            # Of the abstract namespace: no file that a killed process would leave behind.
            name = f"penstock-kv-{secrets.token_hex(8)}"
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(f"\0{name}")
            self.address = f"unix:{name}"
        else:
            family = socket.AF_INET6 if ":" in setup.host else socket.AF_INET
            self._listener = socket.socket(family)
            self._listener.bind((setup.host, 0))
            self.address = f"tcp:{setup.host}:{self._listener.getsockname()[1]}"
        self._listener.listen()
        threading.Thread(target=self._accept, name="kv-export", daemon=True).start()

    # --- of the engine's loop

    def open(self, transfer: str, holding: Holding) -> None:
        self._leases[transfer] = Lease(holding, self._memory)

    def end(self, transfer: str) -> Holding | None:
        """The blocks of a transfer, which no thread reads any more; None: there is no such transfer."""
        lease = self._leases.pop(transfer, None)
        if lease is None:
            return None
        lease.close()
        return lease.holding

    def close(self) -> list[Holding]:
        """Listen no more; returns what was still held."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        return [holding for one in list(self._leases) if (holding := self.end(one)) is not None]

    # --- of threads

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(RETRY_S)  # too many open files
                continue
            if (self._local and _user_of(sock) != os.getuid()) or not self._free.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), name="kv-export", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            channel = Channel(sock, ToExporter, self._key, listens=True, stall_s=self._stall_s)
            fetch = channel.receive()
            if not isinstance(fetch, Fetch):
                raise TransferError("corrupt", f"{type(fetch).__name__} instead of Fetch")
            try:
                lease = self._find(fetch)
            except TransferError as error:
                channel.send(Refusal(error.cause, str(error)))
                return
            self._send(channel, lease, lease.items(fetch.wanted))
        except (TransferError, OSError) as error:  # the importer says what it means for the request
            logger.info("a transfer of KV blocks ended early: %s", error)
        finally:
            _close(sock)
            self._free.release()

    def _find(self, fetch: Fetch) -> Lease:
        if fetch.layout != self._layout:
            raise TransferError("layout", f"blocks here are {self._layout!r}, those asked for {fetch.layout!r}")
        lease = self._leases.get(fetch.transfer)
        if lease is None:
            raise TransferError("cancelled", "there is no such transfer")
        if len(fetch.wanted) != len(self._memory):
            raise TransferError("layout", f"{len(self._memory)} cache groups here, {len(fetch.wanted)} asked for")
        return lease

    def _send(self, channel: Channel, lease: Lease, items: list[tuple[int, int]]) -> None:
        if self._local:
            self._share(channel, lease, items)
            return
        channel.send(Offer(len(items)))
        buffers = [np.empty(blocks.shape[1], np.uint8) for blocks in self._memory]
        for group, index in items:
            lease.copy(group, index, buffers[group])
            channel.send(Block(group, index), buffers[group].data)
        channel.send(End())

    def _share(self, channel: Channel, lease: Lease, items: list[tuple[int, int]]) -> None:
        """Through shared memory: a slot is written again once the importer has taken its block."""
        slot_bytes = max(blocks.shape[1] for blocks in self._memory)
        slots = Segment.count_slots(slot_bytes)
        channel.send(Offer(len(items), slots, slot_bytes))
        segment = Segment.create(channel.socket, slots, slot_bytes)
        taken = 0
        for place, (group, index) in enumerate(items):
            while place - taken >= slots:
                taken += _receive_taken(channel, place - taken)
            slot = place % slots
            lease.copy(group, index, segment.slots[slot, : self._memory[group].shape[1]])
            channel.send(Block(group, index, slot))
        channel.send(End())


def _receive_taken(channel: Channel, most: int) -> int:
    message = channel.receive()
    if not isinstance(message, Taken) or not 0 < message.count <= most:
        raise TransferError("corrupt", "more slots were taken than filled")
    return message.count


def _close(sock: socket.socket) -> None:
    """Once the other end has closed. Closing with unread messages would take from it what it has not read."""
    with sock, contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 12):
            pass


def _user_of(sock: socket.socket) -> int:
    """Of the process at the other end of a Unix socket."""
    return int(_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])
