"""Shared memory between two processes of a host: a few slots, each of one block.

It has no name: its descriptor travels over the Unix socket, and the system frees it with the last process that has it,
however that ends.
"""

from __future__ import annotations

import mmap
import os
import socket

import numpy as np
from numpy.typing import NDArray

from penstock.engine.transfer.messages import TransferError

SEGMENT_BYTES = 8 << 20  # about; two slots at least
MAX_SLOTS = 64
DESCRIPTOR = b"m"  # the byte that the descriptor comes with


class Segment:
    def __init__(self, descriptor: int, slots: int, slot_bytes: int) -> None:
        """Takes the descriptor over."""
        try:
            if os.fstat(descriptor).st_size < slots * slot_bytes:  # else a read would end the process
                raise TransferError("corrupt", "the shared memory is smaller than it was said to be")
            self._mapping = mmap.mmap(descriptor, slots * slot_bytes)
        finally:
            os.close(descriptor)
        self.slots: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8).reshape(slots, slot_bytes)

    @staticmethod
    def count_slots(slot_bytes: int) -> int:
        return min(max(SEGMENT_BYTES // slot_bytes, 2), MAX_SLOTS)

    @classmethod
    def create(cls, sock: socket.socket, slots: int, slot_bytes: int) -> Segment:
        """Make one and pass it to the process at the other end of a Unix socket."""
        descriptor = os.memfd_create("penstock-kv")
        try:
            os.ftruncate(descriptor, slots * slot_bytes)
            socket.send_fds(sock, [DESCRIPTOR], [descriptor])
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, slots, slot_bytes)

    @classmethod
    def receive(cls, sock: socket.socket, slots: int, slot_bytes: int) -> Segment:
        if not 1 <= slots <= MAX_SLOTS:
            raise TransferError("corrupt", f"shared memory of {slots} slots")
        data, descriptors, _, _ = socket.recv_fds(sock, len(DESCRIPTOR), 1)
        if data != DESCRIPTOR or len(descriptors) != 1:
            for one in descriptors:
                os.close(one)
            raise TransferError("connection", "the other side is gone, or passed no shared memory")
        return cls(descriptors[0], slots, slot_bytes)
