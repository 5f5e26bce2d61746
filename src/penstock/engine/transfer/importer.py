"""The side of a transfer that wants the blocks: a thread of its own fetches them, straight into blocks of the cache
that no sequence uses yet. The engine's loop publishes what has arrived."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from penstock.cache import Holding
from penstock.engine.transfer.channel import STALL_S, Channel, transfer_key
from penstock.engine.transfer.messages import Block, End, Fetch, Offer, Refusal, Taken, ToImporter, TransferError
from penstock.engine.transfer.segment import Segment

logger = logging.getLogger(__name__)


class Import:
    """One transfer, from its making on. `arrived`, `error` and `seconds` are final once it has ended."""

    def __init__(
        self,
        address: str,
        fetch: Fetch,
        holding: Holding,
        memory: Sequence[NDArray[np.uint8]],
        secret: bytes,
        stall_s: float = STALL_S,
    ) -> None:
        """Writes to the blocks of `holding`, which must stay held until it has ended."""
        self.arrived: list[tuple[int, int]] = []  # (group, index), whole
        self.error: TransferError | None = None
        self.seconds = 0.0
        self._address = address
        self._fetch = fetch
        self._holding = holding
        self._memory = memory
        self._key = transfer_key(secret)
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None  # once it is connected
        self.stopped = False  # by `stop`
        self._thread = threading.Thread(target=self._run, name="kv-import", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def num_bytes(self) -> int:
        return sum(self._memory[group].shape[1] for group, _ in self.arrived)

    def stop(self) -> None:
        """Have it end; `join` says when it has."""
        with self._lock:
            self.stopped = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread's wait, which `close` does not

    def join(self, wait_s: float) -> bool:
        """Wait for its end; False: it may still write."""
        self._thread.join(wait_s)
        return self.ended

    def _run(self) -> None:
        start = time.monotonic()
        try:
            self._fetch_blocks()
        except TransferError as error:
            self.error = error
        except TimeoutError:
            self.error = TransferError("timeout", f"nothing came for {self._stall_s:g} s")
        except OSError as error:
            self.error = TransferError("connection", str(error))
        except Exception as error:
            logger.exception("a transfer of KV blocks failed")
            self.error = TransferError("internal", f"{type(error).__name__}: {error}")
        if self.stopped:
            self.error = TransferError("cancelled", "the transfer was ended")
        self.seconds = time.monotonic() - start

    def _fetch_blocks(self) -> None:
        with connect(self._address, self._stall_s) as sock:
            with self._lock:
                if self.stopped:
                    return
                self._socket = sock
            channel = Channel(sock, ToImporter, self._key, listens=False, stall_s=self._stall_s)
            channel.send(self._fetch)
            offer = channel.receive()
            if isinstance(offer, Refusal):
                raise TransferError(offer.cause, offer.message)
            if not isinstance(offer, Offer):
                raise TransferError("corrupt", f"{type(offer).__name__} instead of Offer")
            segment = Segment.receive(sock, offer.slots, offer.slot_bytes) if offer.slots else None
            self._take(channel, offer, segment)

    def _take(self, channel: Channel, offer: Offer, segment: Segment | None) -> None:
        wanted = {(group, index) for group, some in enumerate(self._fetch.wanted) for index in some}

        def memory_of(message: object) -> memoryview | None:
            """Where the content of a block goes. A block that was not asked for has no place."""
            if not isinstance(message, Block):
                return None
            if (message.group, message.index) not in wanted:
                raise TransferError("corrupt", "a block that was not asked for")
            wanted.remove((message.group, message.index))
            return None if segment is not None else self._target(message).data

        while isinstance(message := channel.receive(memory_of), Block):
            if segment is not None:
                target = self._target(message)
                if not 0 <= message.slot < offer.slots or len(target) > offer.slot_bytes:
                    raise TransferError("corrupt", f"there is no slot {message.slot}")
                np.copyto(target, segment.slots[message.slot, : len(target)])
                channel.send(Taken(1))
            self.arrived.append((message.group, message.index))
        if not isinstance(message, End) or len(self.arrived) != offer.blocks:
            raise TransferError("corrupt", f"{len(self.arrived)} of {offer.blocks} blocks came")

    def _target(self, block: Block) -> NDArray[np.uint8]:
        target: NDArray[np.uint8] = self._memory[block.group][self._holding.blocks[block.group][block.index]]
        return target


def connect(address: str, timeout_s: float) -> socket.socket:
    """To an `Exporter.address`."""
    kind, _, place = address.partition(":")
    if kind == "tcp":
        host, _, port = place.rpartition(":")
        return socket.create_connection((host, int(port)), timeout_s)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout_s)
        sock.connect(f"\0{place}")
    except BaseException:
        sock.close()
        raise
    return sock
