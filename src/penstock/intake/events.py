"""Server-sent events as they go over the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from penstock.intake.problems import Problem

_encode = msgspec.json.Encoder().encode


class Named(NamedTuple):
    """An event that says what it is. A plain one is its data alone."""

    name: str
    data: bytes  # JSON


Event = bytes | Named


def named(event: msgspec.Struct) -> Named:
    """Called by its tag."""
    return Named(str(event.__struct_config__.tag), _encode(event))


def framed(events: Iterable[Event]) -> bytes:
    return b"".join([_framed(event) for event in events])


def _framed(event: Event) -> bytes:
    if isinstance(event, Named):
        return b"event: " + event.name.encode() + b"\ndata: " + event.data + b"\n\n"
    return b"data: " + event + b"\n\n"


class Plain:
    """How streams of plain events end, in OpenAI's older APIs. A base of their writers."""

    end: Sequence[Event] = (b"[DONE]",)

    def failed(self, told: Problem) -> Sequence[Event]:
        return [told.body]
