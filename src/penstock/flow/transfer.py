"""How the engines of a model's prefill and decode pools hand blocks to each other (`engine.transfer`)."""

from __future__ import annotations

from typing import Literal

import msgspec

# Between processes of a host, or over TCP.
Transport = Literal["shared-memory", "tcp"]

TRANSFER_S = 30.0  # a frontend waits no longer for blocks, from the export to the end of the import
HOLD_S = 2 * TRANSFER_S  # what it has not ended by then, an engine ends: the frontend has died


class TransferSetup(msgspec.Struct, frozen=True):
    """Of one engine."""

    transport: Transport
    exports: bool  # it computes prompts for others: it listens for those that fetch their blocks
    host: str = "127.0.0.1"  # where it listens, over TCP; an engine of a cluster listens at its node's address
