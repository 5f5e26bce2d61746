"""How the engines of a model's prefill and decode pools hand blocks to each other (`engine.transfer`)."""

from __future__ import annotations

from typing import Literal

import msgspec

# Between processes of a host, or over TCP.
Transport = Literal["shared-memory", "tcp"]


class TransferSetup(msgspec.Struct, frozen=True):
    """Of one engine."""

    transport: Transport
    exports: bool  # it computes prompts for others: it listens for those that fetch their blocks
    host: str = "127.0.0.1"  # where it listens, over TCP
