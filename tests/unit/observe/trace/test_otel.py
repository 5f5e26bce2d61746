"""Spans as a collector gets them, and the headers they go by."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.journal_driver import JournalDriver
from penstock.flow import Trace
from penstock.http.middleware import trace_context
from penstock.observe import events
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.otel import Spans

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def served(trace: Trace) -> tuple[JournalDriver, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    watched = JournalDriver()
    spans = Spans("1.0", exporter, watched.journal.epoch)
    watched.journal = Journal(
        watched.source, clock=lambda: watched.now, epoch=watched.journal.epoch, listeners=[spans.export]
    )
    take = watched.journal.record

    def traced(event: events.Event) -> None:
        if isinstance(event, events.Accepted):
            event = events.Accepted(event.request, event.t, event.request_id, event.kind, trace)
        take(event)

    watched.journal.record = traced  # type: ignore[method-assign]
    watched.serve("a")
    spans.shutdown()
    return watched, exporter


def test_a_request_is_a_span_under_its_clients_with_its_stages_below() -> None:
    given = Trace(TRACE, "00f067aa0ba902b7", SPAN, 1)
    watched, exporter = served(given)
    *stages, root = exporter.get_finished_spans()
    assert root.name == "chat m"
    assert format(root.context.trace_id, "032x") == TRACE
    assert format(root.context.span_id, "016x") == given.span, "the client was told this id"
    assert root.parent is not None
    assert format(root.parent.span_id, "016x") == SPAN
    assert {"intake", "template", "tokenize", "prefill", "decode", "write"} <= {span.name for span in stages}
    assert all(span.parent is not None and span.parent.span_id == root.context.span_id for span in stages)
    whole = root.end_time - root.start_time  # type: ignore[operator]
    parts = sum(span.end_time - span.start_time for span in stages)  # type: ignore[operator,misc]
    assert parts == pytest.approx(whole, abs=1000 * len(stages))
    assert root.attributes is not None
    assert root.attributes["gen_ai.usage.output_tokens"] == 3
    assert root.start_time == pytest.approx(watched.journal.epoch.unix * 1e9, abs=1e9)


def test_what_the_client_does_not_sample_is_not_sent() -> None:
    _, exporter = served(Trace(TRACE, "00f067aa0ba902b7", SPAN, 0))
    assert not exporter.get_finished_spans()


def scope(*values: str) -> dict[str, object]:
    return {"headers": [(b"traceparent", value.encode()) for value in values]}


def test_a_traceparent_is_taken_and_answered() -> None:
    found = trace_context.read_traceparent(scope(f"00-{TRACE}-{SPAN}-01"))
    assert found is not None
    assert (found.id, found.parent, found.flags) == (TRACE, SPAN, 1)
    assert found.span not in (SPAN, "0" * 16)
    assert trace_context.format_traceresponse(found) == f"00-{TRACE}-{found.span}-01".encode()
    later = trace_context.read_traceparent(scope(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings"))
    assert later is not None
    assert later.id == TRACE


@pytest.mark.parametrize(
    "value",
    [
        "", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-01 ",
        f" 00-{TRACE}-{SPAN}-01", f"00-{TRACE[:-1]}g-{SPAN}-01", f"0-{TRACE}-{SPAN}-01",
    ],
)  # fmt: skip
def test_what_is_not_a_traceparent_is_ignored(value: str) -> None:
    assert trace_context.read_traceparent(scope(value)) is None


def test_two_traceparents_are_none() -> None:
    assert trace_context.read_traceparent(scope(f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01")) is None
