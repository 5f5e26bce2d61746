"""A request that is refused on its way in tells so, once; one that is let in does not."""

from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from penstock.errors import InvalidRequest, QueueFull
from penstock.flow import Request, SamplingParams
from penstock.gateway.keys.identity import ANONYMOUS
from penstock.http.request_events import RequestEvents
from penstock.observe.events import Accepted, Event, Finished, Parsed, Rejected, Validated

SCOPE: dict[str, Any] = {"state": {"request_id": "req-1", "accepted": 1.0, "trace": None, "identity": ANONYMOUS}}


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("no", param="x"), 400, "invalid_request"),
        (QueueFull("later"), 429, "queue_full"),
        (ClientDisconnect(), 499, "client_gone"),
        (KeyError("a secret"), 500, "internal_error"),
    ],
)
def test_a_refusal_is_told_with_its_status(error: Exception, status: int, code: str) -> None:
    told: list[Event] = []
    events = RequestEvents(SCOPE, "chat", told.append)
    events.parsed(stream=True)
    with pytest.raises(type(error)), events:
        raise error
    accepted, parsed, rejected = told
    assert isinstance(accepted, Accepted)
    assert (accepted.request, accepted.t, accepted.request_id) == (events.name, 1.0, "req-1")
    assert isinstance(parsed, Parsed)
    assert isinstance(rejected, Rejected)
    assert (rejected.request, rejected.status, rejected.code) == (events.name, status, code)
    assert "secret" not in rejected.message


def test_one_that_is_let_in_tells_its_parameters_but_no_texts() -> None:
    told: list[Event] = []
    with RequestEvents(SCOPE, "chat", told.append) as events:
        params = SamplingParams(temperature=0.5, stop=("my secret",))
        events.validated([Request(id=events.name, params=params, text="hello")])
    assert len(told) == 2
    assert isinstance(told[1], Validated)
    assert told[1].params == {"temperature": 0.5, "stop": 1}


def test_one_that_is_answered_at_once_is_finished() -> None:
    told: list[Event] = []
    with RequestEvents(SCOPE, "ollama", told.append) as events:
        events.answered()
    assert [type(event) for event in told] == [Accepted, Finished]


def test_nobody_listens() -> None:
    with RequestEvents(SCOPE, "chat", None) as events:
        events.parsed()
        events.validated([])
        events.answered()
    assert len(events.name) == 32
