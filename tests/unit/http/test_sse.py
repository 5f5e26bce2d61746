from __future__ import annotations

import json

import msgspec
import pytest

from penstock.http.sse import Event, JsonLine, NamedEvent, TextEvent, encode_text, frame_events

SEPARATED = "one\u2028two\u2029three\x85four\nfive"


@pytest.mark.parametrize(
    "event",
    [
        msgspec.json.encode(SEPARATED),
        NamedEvent("delta", msgspec.json.encode(SEPARATED)),
        JsonLine(msgspec.json.encode(SEPARATED)),
    ],
)
def test_data_is_one_line_for_clients_that_know_the_separators_of_unicode(event: Event) -> None:
    lines = [line for line in frame_events([event]).decode().splitlines() if line and not line.startswith("event: ")]
    assert [json.loads(line.removeprefix("data: ")) for line in lines] == [SEPARATED]


def test_a_text_event_is_one_line_too() -> None:
    event = TextEvent(lambda text: msgspec.json.encode({"text": text}))
    framed = event.framed_head + event.encode_text(SEPARATED) + event.framed_tail
    assert framed == frame_events([event.holding(SEPARATED)])
    assert encode_text("é") == '"é"'.encode()
