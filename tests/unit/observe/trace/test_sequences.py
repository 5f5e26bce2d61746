"""Sequences as the engine's frames tell of them."""

import pytest

from helpers.journal_driver import JournalDriver
from penstock.flow import FinishReason
from penstock.flow.record import Finding
from penstock.observe import events
from penstock.observe.trace.sequences import MAX_EARLY
from penstock.observe.trace.timeline import spans


def test_further_tokens_in_numbers_leave_the_trace_that_deltas_leave() -> None:
    apart, together = JournalDriver(), JournalDriver()
    for watched, as_numbers in ((apart, False), (together, True)):
        for name in ("a", "b", "c"):
            watched.accept(name)
        watched.step({"a": 40, "b": 40}, admissions={"a": Finding(), "b": Finding()})
        watched.step({"a": 1, "b": 1}, as_numbers=as_numbers)
        watched.step({"a": 1, "b": 1, "c": 40}, admissions={"c": Finding()}, as_numbers=as_numbers)
        watched.step({"b": 1}, seconds=0.05, as_numbers=as_numbers)
        watched.step({"a": 1, "b": 1, "c": 1}, as_numbers=as_numbers)
        watched.step({"a": 1}, finish={"a": FinishReason.LENGTH})
    delivered = [event for event in together.events if isinstance(event, events.Delivered)]
    assert [len(event.numbers) for event in delivered] == [0, 2, 2, 1, 3, 0]
    one, other = apart.journal.replica(), together.journal.replica()
    assert one.totals.output_tokens == other.totals.output_tokens == 12
    assert one.token_gap_s.cumulative() == other.token_gap_s.cumulative()
    assert other.token_gap_s.cumulative()[-1] == ("+Inf", 9.0)
    for name in ("a", "b", "c"):
        requests = [watched.journal.find(name) for watched in (apart, together)]
        (one_sequence,), (other_sequence,) = (request.sequences for request in requests if request is not None)
        for field in ("output_tokens", "last_step", "finish", "last_token", "heard"):
            assert getattr(other_sequence, field) == pytest.approx(getattr(one_sequence, field)), field
        one_spans = spans(requests[0], apart.journal)  # type: ignore[arg-type]
        other_spans = spans(requests[1], together.journal)  # type: ignore[arg-type]
        assert [(span.stage, span.step) for span in other_spans] == [(span.stage, span.step) for span in one_spans]
        assert all(span.start <= span.end for span in other_spans)


def test_an_admission_may_come_before_its_sequence_is_known() -> None:
    """With several frontends they go different ways."""
    watched = JournalDriver()
    watched.open["a"] = 1  # the number that it will have
    watched.step({"a": 40}, admissions={"a": Finding()}, cached=16)
    step_start = watched.now
    watched.accept("a")
    found = watched.journal.sequences.find(1)
    assert found is not None
    request, sequence = found
    assert (request.id, sequence.cached, sequence.first_step, sequence.waiting) == ("a", 16, 1, False)
    assert sequence.admitted is not None
    assert sequence.admitted < step_start
    assert watched.journal.totals.hit_tokens == 16
    assert not watched.journal.sequences._early


def test_admissions_of_sequences_that_never_come_are_bounded() -> None:
    watched = JournalDriver()
    for number in range(1, MAX_EARLY + 11):
        watched.open["unknown"] = number
        watched.step({"unknown": 40}, admissions={"unknown": Finding()})
    assert len(watched.journal.sequences._early) == MAX_EARLY
    assert len(watched.journal.sequences) == 0
    watched.accept("a")  # number 1, whose admission has gone
    assert watched.journal.waiting == 1
