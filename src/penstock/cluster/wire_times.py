"""Times of messages between hosts. In `flow` they are seconds of the reading process's monotonic clock, and hosts have
different ones: between hosts every instant travels as its distance from the moment it is sent. So durations stay
exact, and instants are late by the time on the wire."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from penstock.flow import Delta, Frame, Submit, Timings
from penstock.flow.record import shift_times

T = TypeVar("T", bound=msgspec.Struct)


def shifted(message: T, by_s: float) -> T:
    """The message with all its instants moved: by minus now when it is sent, by now when it has arrived."""
    if isinstance(message, Submit):
        return replace(message, arrival=message.arrival + by_s)
    if isinstance(message, Frame):
        record = None if message.record is None else shift_times(message.record, by_s)
        return replace(message, record=record, deltas=[_shifted_delta(delta, by_s) for delta in message.deltas])
    return message


def _shifted_delta(delta: Delta, by_s: float) -> Delta:
    return delta if delta.timings is None else replace(delta, timings=_shifted_timings(delta.timings, by_s))


def _shifted_timings(timings: Timings, by_s: float) -> Timings:
    def moved(instant: float | None) -> float | None:
        return None if instant is None else instant + by_s

    return replace(
        timings,
        arrival=timings.arrival + by_s,
        admitted=moved(timings.admitted),
        first_token=moved(timings.first_token),
        finished=timings.finished + by_s,
    )
