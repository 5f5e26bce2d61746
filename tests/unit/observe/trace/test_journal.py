"""What is kept of requests and steps: enough to explain them, and never more than was promised."""

from array import array
from itertools import pairwise
from typing import Any

import pytest

from helpers.journal_driver import JournalDriver
from penstock.flow import FinishReason, record
from penstock.flow.record import Finding
from penstock.flow.routing import Considered, Decision
from penstock.observe import events
from penstock.observe.trace.records import MAX_WRITES
from penstock.observe.trace.step_ring import StepRing
from penstock.observe.trace.step_window import step_window
from penstock.observe.trace.timeline import MAX_SPANS, downsample, spans, stages
from penstock.observe.trace.views import View, ViewedModel


class Letters:
    def decode(self, tokens: list[int], *, skip_special: bool = True) -> str:
        return "".join(chr(97 + token % 26) for token in tokens)


def view(watched: JournalDriver) -> View:
    return View(watched.journal, {watched.source.model: ViewedModel(Letters(), 16)}.get)


def detail_of(watched: JournalDriver, name: str) -> dict[str, Any]:
    request = watched.journal.find(name)
    assert request is not None
    return view(watched).with_steps(request, view(watched).overview(request))


def test_the_stages_of_a_request_add_up_to_its_latency() -> None:
    watched = JournalDriver()
    begin = watched.now
    watched.serve("a", tokens=5)
    detail = detail_of(watched, "a")
    assert detail["e2e_us"] == round((watched.now - begin) * 1e6)
    assert sum(stage["us"] for stage in detail["stages"]) == pytest.approx(detail["e2e_us"], abs=20)
    for before, after in zip(detail["stages"], detail["stages"][1:], strict=False):
        assert before["end"] == after["start"], "there is a gap"
    names = [stage["name"] for stage in detail["stages"]]
    assert names[:8] == ["intake", "validate", "template", "tokenize", "submit", "prefill", "decode", "deliver"]
    assert {stage["name"]: stage["us"] for stage in detail["stages"]}["prefill"] == 20_000
    assert detail["totals"]["prefill_steps"] == 1
    assert detail["totals"]["decode_steps"] == 4
    assert detail["totals"]["writes"] == 5


def test_the_time_between_tokens_is_told_for_each_sequence() -> None:
    watched = JournalDriver()
    for name in ("a", "b"):
        watched.accept(name)
    starts: dict[str, list[float]] = {"a": [], "b": []}  # all steps take equally long

    def step(names: str, tokens: int, **more: Any) -> None:
        for name in names:
            starts[name].append(watched.now)
        watched.step(dict.fromkeys(names, tokens), **more)

    step("ab", 40, admissions={"a": Finding(), "b": Finding()})
    step("ab", 1)
    step("ab", 1)
    watched.later(0.1)
    step("a", 1)
    step("b", 1)
    for name, times in starts.items():
        (sequence,) = detail_of(watched, name)["sequences"]
        _, middle, longest = sorted(after - before for before, after in pairwise(times))
        expected = {"p50": middle * 1e6, "p95": longest * 1e6, "max": longest * 1e6}
        assert sequence["inter_token_us"] == pytest.approx(expected, abs=2)
        assert sequence["inter_token_us"]["max"] > 100_000 > sequence["inter_token_us"]["p50"]


def test_no_time_between_tokens_where_there_is_but_one() -> None:
    watched = JournalDriver()
    watched.accept("a")
    watched.step({"a": 40}, admissions={"a": Finding()})
    (sequence,) = detail_of(watched, "a")["sequences"]
    assert sequence["inter_token_us"] is None


@pytest.mark.parametrize("where", ["accepted", "queued", "running"])
def test_so_do_those_of_one_that_is_cut_short(where: str) -> None:
    watched = JournalDriver()
    watched.accept("a") if where != "accepted" else watched.tell(events.Accepted("a", watched.now, "q", "chat"))
    if where == "running":
        watched.step({"a": 40}, admissions={"a": Finding()})
    watched.later(0.5)
    request = watched.journal.find("a")
    assert request is not None
    for end in (None, watched.later(1.0)):
        if end is not None and where == "accepted":
            watched.tell(events.Rejected("a", end, 400, "invalid_request", "no"))
        elif end is not None:
            watched.finish("a", FinishReason.CANCELLED)
        pieces = stages(request, watched.now)
        assert pieces[0].start == request.accepted
        assert pieces[-1].end == watched.now
        assert sum(piece.end - piece.start for piece in pieces) == pytest.approx(watched.now - request.accepted)
    assert pieces[-1].name == {"accepted": "intake", "queued": "queue", "running": "decode"}[where]


def test_no_stage_of_a_refused_request_is_there_twice() -> None:
    """It was validated and tokenized, and then it was too long."""
    watched = JournalDriver()
    watched.tell(events.Accepted("a", watched.now, "q", "chat"))
    watched.tell(events.Parsed("a", watched.later(0.001), stream=False))
    watched.tell(events.Validated("a", watched.later(0.001), {}))
    refused = watched.journal.find("a")
    assert refused is not None
    watched.later(0.002)
    assert [(stage.name, stage.end) for stage in stages(refused, watched.now)][-1] == ("wait", watched.now)
    start = watched.now
    watched.tell(events.Tokenized("a", watched.later(0.001), start, [1, 2], "m"))
    watched.tell(events.Rejected("a", watched.later(0.003), 400, "context_length_exceeded", "too long"))
    names = [stage.name for stage in stages(refused, watched.now)]
    assert names == ["intake", "validate", "wait", "tokenize", "wait"]


def test_a_preempted_request_tells_when_and_why() -> None:
    watched = JournalDriver()
    watched.accept("a")
    watched.step({"a": 40}, admissions={"a": Finding()})
    watched.accept("b")
    watched.step({"b": 40}, admissions={"b": Finding()}, preemptions=("a",))
    assert watched.journal.waiting == 1
    watched.step({"a": 41, "b": 1}, admissions={"a": Finding()}, finish={"a": FinishReason.LENGTH})
    watched.finish("a")
    detail = detail_of(watched, "a")
    (sequence,) = detail["sequences"]
    assert [(one["step"], one["why"]) for one in sequence["preemptions"]] == [(2, "blocks")]
    assert detail["preemptions"] == watched.journal.totals.preemptions == 1
    assert (sequence["first_step"], sequence["last_step"]) == (1, 3)


@pytest.mark.parametrize(
    ("waits", "overtaken", "expected"),
    [
        ({"step": 900}, 0, "step"),
        ({"step": 900, "slot": 5}, 0, "slot"),
        ({"budget": 10, "blocks": 4000, "prefix": 20}, 0, "blocks"),
        ({"prefix": 20}, 0, "prefix"),
        ({"slot": 10, "share": 500}, 0, "share"),
        ({"slot": 500}, 2, "priority"),
    ],
)
def test_says_what_a_request_waited_for(waits: dict[str, int], overtaken: int, expected: str) -> None:
    watched = JournalDriver()
    watched.accept("a")
    watched.step({"a": 40}, admissions={"a": Finding()}, waits=waits, overtaken=overtaken)
    assert view(watched).summary(watched.journal.find("a"))["waited_for"] == expected  # type: ignore[arg-type]


def test_texts_are_kept_only_where_that_is_allowed() -> None:
    for keep in (False, True):
        watched = JournalDriver(keep_texts=keep)
        watched.accept("a", prompt=45)
        watched.step(
            {"a": 40}, admissions={"a": Finding(record.DIVERGED, 30)}, finish={"a": FinishReason.END}, cached=16
        )
        watched.finish("a")
        request = watched.journal.find("a")
        assert request is not None
        detail = detail_of(watched, "a")
        cache = detail["sequences"][0]["cache"]
        assert (cache["diverged_at"], cache["reason"]) == (30, "diverged")
        if keep:
            assert detail["texts"]["answers"] == ["the answer"]
            assert (cache["text"]["at"], cache["text"]["before"][-1], cache["text"]["after"][0]) == ("e", "d", "f")
        else:
            assert request.prompts is None
            assert request.answers is None
            assert detail["texts"] is None
            assert cache["text"] is None


def test_old_requests_go_and_leave_nothing_behind() -> None:
    watched = JournalDriver(max_done=10)
    for place in range(50):
        watched.serve(f"r{place}", tokens=2)
    watched.accept("open")
    journal = watched.journal
    assert len(journal.done) == 10
    assert journal.totals.requests == 50
    assert len(journal._requests) == 11
    assert len(journal.sequences) == 11
    assert len(journal.sequences._by_id) == len(journal.sequences._owners) == 11
    assert len(journal._aliases) == 11
    assert journal.find("r1") is None
    assert journal.find("req-r49") is journal.find("chatcmpl-r49") is journal.find("50")
    for place in range(30):  # that were never let in
        watched.tell(events.Accepted(f"x{place}", watched.now, "same-id", "chat"))
        watched.tell(events.Rejected(f"x{place}", watched.now, 400, "invalid_request", "no"))
    assert len(journal._requests) == 11
    assert len(journal._aliases) <= 11


@pytest.mark.parametrize("named", ["nothing-here", None])
def test_a_request_that_no_model_had_is_no_replicas(named: str | None) -> None:
    watched = JournalDriver()
    watched.tell(events.Accepted("a", watched.now, "req-a", "chat"))
    watched.tell(events.Parsed("a", watched.later(0.001), stream=False, model=named))
    watched.tell(events.Rejected("a", watched.later(0.001), 404, "model_not_found", "the model does not exist"))
    detail = detail_of(watched, "a")
    assert (detail["model"], detail["replica"], detail["asked"]) == (named, None, named)
    watched.serve("b", tokens=1)
    assert (detail_of(watched, "b")["model"], detail_of(watched, "b")["replica"]) == ("m", 0)


def test_a_route_is_told_step_by_step() -> None:
    watched = JournalDriver()
    watched.accept("a")
    considered = (Considered("big", True, "2 signals", 0.0), Considered("small", False, "choice 2", 1.0))
    watched.tell(events.Routed("a", watched.now, [Decision(policy="size", chosen="big", considered=considered)]))
    watched.tell(events.AttemptFailed("a", watched.now, "big/0", "upstream_busy", "it is overloaded"))
    decision, failure = detail_of(watched, "a")["route"]
    assert (decision["kind"], decision["policy"], decision["chosen"]) == ("decision", "size", "big")
    assert decision["considered"][1] == {"name": "small", "chosen": False, "reason": "choice 2", "score": 1.0}
    assert failure == {"kind": "failure", "name": "big/0", "code": "upstream_busy", "message": "it is overloaded"}


def test_tokens_behind_a_stop_string_are_not_counted() -> None:
    watched = JournalDriver()
    watched.serve("a", tokens=5)  # of which the client got three, as `finish` says
    request = watched.journal.find("a")
    assert request is not None
    assert request.sequences[0].output_tokens == 3
    assert watched.journal.totals.output_tokens == 3


def test_an_estimated_prompt_becomes_what_the_upstream_has_counted() -> None:
    watched = JournalDriver()
    watched.accept("a", prompt=40)
    watched.finish("a", prompt=12, cached=8)
    detail = detail_of(watched, "a")
    assert (detail["prompt_tokens"], detail["cached_tokens"], detail["output_tokens"]) == (12, 8, 3)


def test_the_end_of_a_request_comes_once() -> None:
    watched = JournalDriver()
    watched.serve("a")
    end = watched.journal.find("a").end  # type: ignore[union-attr]
    watched.later(1.0)
    watched.tell(events.Finished("a", watched.now, []))
    watched.tell(events.Rejected("a", watched.now, 500, "x", "y"))
    assert watched.journal.find("a").end == end  # type: ignore[union-attr]
    assert watched.journal.totals.requests == 1


def test_steps_are_bounded_by_number_and_by_bytes() -> None:
    watched = JournalDriver()
    watched.accept("a")
    watched.step({"a": 40}, admissions={"a": Finding()})
    (delivered,) = [event for event in watched.events if isinstance(event, events.Delivered)]
    assert delivered.record is not None
    few, small = StepRing(max_steps=10), StepRing(max_bytes=4000)
    for place in range(100):
        for steps in (few, small):
            assert steps.add(delivered.record, 0.0, b"", b"").number == place + 1
    assert (len(few), few.first, few.last) == (10, 91, 100)
    assert 5 < len(small) < 20
    assert [step.number for step in few.between(95, 97)] == [95, 96, 97]
    assert [step.number for step in few.between(1, 92)] == [91, 92]
    assert [step.number for step in few.between(99, 200)] == [99, 100]
    assert not list(few.between(101, 200))


def test_writes_told_together_are_kept_like_those_told_one_by_one() -> None:
    apart, together = JournalDriver(), JournalDriver()
    for watched in (apart, together):
        watched.accept("a")
    now = apart.now
    writes = [(now + 0.001 * place, 100 + place) for place in range(MAX_WRITES + 10)]
    for begin in range(0, len(writes), 64):
        lot = writes[begin : begin + 64]
        for t, num_bytes in lot:
            apart.tell(events.Flushed("a", t, t, num_bytes))
        writes_of_lot = array("d", [number for write in lot for number in write])
        together.tell(events.FlushedTokens("a", lot[-1][0], writes_of_lot))
    one, other = apart.journal.find("a"), together.journal.find("a")
    assert one is not None
    assert other is not None
    assert other.writes == one.writes
    assert (other.num_writes, other.write_us, other.written) == (one.num_writes, one.write_us, one.written)


def test_a_slow_client_does_not_fill_the_memory() -> None:
    watched = JournalDriver()
    watched.accept("a")
    for _ in range(MAX_WRITES + 500):
        watched.write("a", seconds=0.001)
    request = watched.journal.find("a")
    assert request is not None
    assert len(request.writes) == 3 * MAX_WRITES
    assert request.num_writes == MAX_WRITES + 500
    assert request.write_us == pytest.approx((MAX_WRITES + 500) * 1000, abs=5000)
    assert request.written == 100 * (MAX_WRITES + 500)
    assert view(watched).overview(request)["slow_client"]


def test_many_spans_are_joined_but_none_is_lost() -> None:
    watched = JournalDriver()
    watched.serve("a", tokens=900)
    request = watched.journal.find("a")
    assert request is not None
    found = spans(request, watched.journal)
    shown = downsample(found)
    assert len(found) > 2 * MAX_SPANS > MAX_SPANS >= len(shown)
    assert sum(span.joined for span in shown) == len(found)
    assert min(span.start for span in shown) == request.accepted


def test_a_window_of_steps() -> None:
    watched = JournalDriver()
    watched.accept("a")
    watched.accept("b")
    watched.step({"a": 40}, admissions={"a": Finding()}, cached=16, waiting=1, blocked=record.SLOT)
    watched.step({"a": 1}, finish={"a": FinishReason.END}, waiting=1, blocked=record.SLOT)
    watched.step({"b": 40}, admissions={"b": Finding()})
    told = step_window(watched.journal, 1, 99, 100)
    assert (told["from"], told["to"], told["stride"]) == (1, 3, 1)
    assert told["rows"] == {
        "column": [0, 1, 2], "seq": [1, 1, 2], "tokens": [40, 1, 40], "kind": [0, 1, 0], "drafted": [0, 0, 0],
        "accepted": [0, 0, 0],
    }  # fmt: skip
    assert told["steps"]["blocked"] == ["slot", "slot", None]
    assert told["steps"]["us"] == [20_000] * 3
    assert [(mark["step"], mark["seq"], mark["kind"]) for mark in told["marks"]] == [
        (1, 1, "admitted"), (2, 1, "finished"), (3, 2, "admitted"),
    ]  # fmt: skip
    assert told["sequences"][2]["queued_at"] < told["sequences"][2]["admitted_at"]
    coarse = step_window(watched.journal, 1, 3, 2)
    assert (coarse["stride"], coarse["steps"]["tokens"], coarse["rows"]["seq"]) == (2, [41, 40], [1, 2])
    assert step_window(watched.journal, 50, 60, 10)["steps"]["number"] == []
