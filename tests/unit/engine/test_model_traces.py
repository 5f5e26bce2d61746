"""Traces of the model's inside: one at a time, beside the loop, and none for a client that has gone."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.engine.model_traces import MAX_KEPT, ModelTraces
from penstock.errors import InvalidRequest

PATIENCE_S = 60.0


def until_over(traces: ModelTraces, number: int) -> dict[str, Any]:
    over = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if (outcome := traces.result(number)) is not None:
            return outcome
        over.wait(0.01)
    raise AssertionError("the trace does not end")


def test_one_runs_at_a_time_and_is_asked_for_by_its_number() -> None:
    go_on = threading.Event()

    def trace(tokens: list[int], layer: int, position: int, stopped: Callable[[], bool]) -> dict[str, Any]:
        assert go_on.wait(PATIENCE_S)
        return {"said": (tokens, layer, position)}

    traces = ModelTraces(trace)
    first = traces.start([1, 2], 3, 1)
    assert first is not None
    assert traces.start([9], 0, 0) is None
    assert traces.result(first) is None
    go_on.set()
    while (second := traces.start([9], 0, 0)) is None:
        threading.Event().wait(0.001)
    # Another was started before the result of the first was asked for.
    assert until_over(traces, first) == {"found": {"said": ([1, 2], 3, 1)}}
    assert until_over(traces, second) == {"found": {"said": ([9], 0, 0)}}
    assert "error" in (traces.result(first) or {})
    for _ in range(3 * MAX_KEPT):  # whose clients never ask
        while traces.start([9], 0, 0) is None:
            threading.Event().wait(0.001)
    assert len(traces._outcomes) <= MAX_KEPT


def test_a_cancelled_one_ends_and_a_failure_is_told() -> None:
    begun = threading.Event()

    def trace(tokens: list[int], layer: int, position: int, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        begun.set()
        while tokens and not stopped():
            threading.Event().wait(0.001)
        if not tokens:
            raise ValueError("no tokens")
        return None

    traces = ModelTraces(trace)
    number = traces.start([1], 0, 0)
    assert number is not None
    assert begun.wait(PATIENCE_S)
    traces.cancel(number + 1)  # another's
    assert traces.result(number) is None
    traces.cancel(number)
    assert until_over(traces, number) == {"error": "the trace was cancelled"}
    failed = traces.start([], 0, 0)
    assert failed is not None
    assert "ValueError" in until_over(traces, failed)["error"]


def test_a_backend_without_a_tracer_says_so() -> None:
    with pytest.raises(InvalidRequest, match="CPU"):
        ModelTraces(None).start([1], 0, 0)
