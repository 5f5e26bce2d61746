"""What the two sides of a transfer say to each other, once the channel is authenticated.

importer                        exporter
Fetch(transfer, layout, wanted) ──►
                                ◄── Offer (with the segment's descriptor), or Refusal
                                ◄── Block, with its content behind it or in a slot of the segment
Taken (slots are free again)    ──►
                                ◄── End
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A tagged array on the wire."""


class Fetch(Message, frozen=True):
    transfer: str
    layout: str  # of the importer's blocks (`KvMemory.layout`): the exporter's must be the same
    wanted: list[list[int]]  # [groups] indices in the chain of blocks


class Offer(Message, frozen=True):
    blocks: int  # that will follow: those of the wanted ones that are there
    slots: int = 0  # of the segment; 0: the content is in the frames
    slot_bytes: int = 0


class Refusal(Message, frozen=True):
    cause: str
    message: str


class Block(Message, frozen=True):
    group: int
    index: int
    slot: int = -1  # where its content is; -1: behind this message


class Taken(Message, frozen=True):
    """The slots of so many blocks may be written again."""

    count: int


class End(Message, frozen=True):
    """All that was offered has been sent."""


ToExporter = Fetch | Taken
ToImporter = Offer | Refusal | Block | End


class TransferError(Exception):
    """Why a transfer ended early. `cause` is a label of `penstock_kv_transfer_failures_total`."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause
