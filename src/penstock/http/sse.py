"""Server-sent events, and lines of JSON, as they go over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from penstock.flow.json_lines import escape_separators
from penstock.http.error_body import RenderedError

_encode = msgspec.json.Encoder().encode


class NamedEvent(NamedTuple):
    """An event that says what it is. A plain one is its data alone."""

    name: str
    data: bytes  # JSON


class JsonLine(NamedTuple):
    """A line of a stream that is no stream of events (NDJSON)."""

    data: bytes  # JSON


Event = bytes | NamedEvent | JsonLine

_SLOT = "\x1a\x1a"  # what no field of an event holds


class TextEvent:
    """A kind of event that is the same for every token but for one text: encoded once, and then only the text."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        """`encode` gives the event's JSON with a text in it."""
        self._head, self._tail = encode(_SLOT).split(_encode(_SLOT))
        self.framed_head, self.framed_tail = b"data: " + self._head, self._tail + b"\n\n"
        self.encode_text = encode_text

    def holding(self, text: str) -> bytes:
        """The event's JSON with this text in it."""
        return self._head + _encode(text) + self._tail


def encode_text(text: str) -> bytes:
    """As JSON in one line."""
    data = _encode(text)
    return data if text.isascii() else escape_separators(data)


def tagged_event(event: msgspec.Struct) -> NamedEvent:
    """Called by its tag."""
    return NamedEvent(str(event.__struct_config__.tag), _encode(event))


def frame_events(events: Iterable[Event]) -> bytes:
    framed = b"".join([b"data: %b\n\n" % event if type(event) is bytes else _other(event) for event in events])
    return escape_separators(framed)


def _other(event: Event) -> bytes:
    if isinstance(event, JsonLine):
        return b"%b\n" % event.data
    assert isinstance(event, NamedEvent)
    return b"event: %b\ndata: %b\n\n" % (event.name.encode(), event.data)


class Plain:
    """How streams of plain events end, in OpenAI's older APIs. A base of their writers."""

    end: Sequence[Event] = (b"[DONE]",)

    def text_event(self, prompt: int, choice: int) -> TextEvent | None:
        return None

    def error_events(self, told: RenderedError) -> Sequence[Event]:
        return [told.body]
