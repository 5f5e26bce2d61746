"""What the front page shows of the pipeline: where requests are, and how long each stage took."""

import asyncio
from typing import Any

import pytest

from helpers.journal_driver import JournalDriver
from penstock.flow.record import Finding
from penstock.observe import events
from penstock.observe.pipeline_stages import FRESH_S, MAX_REQUESTS, PIPELINE_STAGES, PipelineStages


def read(watched: JournalDriver, stages: PipelineStages | None = None, window_s: float = 60.0) -> dict[str, Any]:
    told = asyncio.run((stages or PipelineStages(watched.journal)).read(window_s))
    return {**told, "by_name": {stage["name"]: stage for stage in told["stages"]}}


def test_each_stage_has_the_times_of_the_requests_that_ended() -> None:
    watched = JournalDriver()
    watched.accept("a")
    watched.tell(events.GatewayWork("a", watched.now, watched.now - 0.002, "limits"))
    watched.tell(events.GatewayWork("a", watched.now, watched.now - 0.003, "ledger"))
    watched.step({"a": 40}, admissions={"a": Finding()}, seconds=0.05)
    watched.step({"a": 1}, seconds=0.01)
    watched.write("a", seconds=0.0005)
    watched.finish("a")
    told = read(watched)
    assert [stage["name"] for stage in told["stages"]] == list(PIPELINE_STAGES)
    means = {name: stage["us_mean"] for name, stage in told["by_name"].items() if stage["count"]}
    expected = {"validate": 2000, "template": 1000, "tokenize": 1000, "prefill": 50_000, "limits": 2000}
    assert {name: means[name] for name in expected} == pytest.approx(expected, abs=1)
    assert means["ledger"] == pytest.approx(3000, abs=1)
    assert means["stream"] == pytest.approx(500, abs=1)
    assert told["requests"] == 1
    # The path adds up to the latency, as the stages of a trace do.
    request = watched.journal.find("a")
    assert request is not None
    assert request.end is not None
    assert sum(told["path_us"].values()) == pytest.approx((request.end - request.accepted) * 1e6, abs=20)
    assert told["totals"]["prefill_tokens"] == 40
    assert told["totals"]["decode_tokens"] == 1
    assert told["totals"]["writes"] == 1


def test_open_requests_are_where_they_are() -> None:
    watched = JournalDriver()
    for name in ("waits", "prefills", "decodes"):
        watched.accept(name)
    watched.step({"prefills": 20, "decodes": 40}, admissions={"prefills": Finding(), "decodes": Finding()})
    watched.tell(events.Accepted("new", watched.now, "req-new", "chat"))
    journal = watched.journal
    prefills = journal.find("prefills")
    assert prefills is not None
    prefills.sequences[0].first_token = None  # a chunk of its prompt: no token yet
    present = {name: stage["now"] for name, stage in read(watched)["by_name"].items() if stage["now"]}
    assert present == {"validate": 1, "queue": 1, "prefill": 1, "decode": 1}


def test_refused_requests_count_where_they_were_refused() -> None:
    watched = JournalDriver()
    for name, code in (("a", "rate_limit_exceeded"), ("b", "invalid_request"), ("c", "queue_full")):
        watched.tell(events.Accepted(name, watched.now, f"req-{name}", "chat"))
        watched.tell(events.Rejected(name, watched.now, 400, code, "no"))
    refused = {name: stage["refused"] for name, stage in read(watched)["by_name"].items() if stage["refused"]}
    assert refused == {"limits": 1, "validate": 1, "queue": 1}


def test_it_covers_its_window_and_no_more_requests_than_it_says() -> None:
    watched = JournalDriver()
    stages = PipelineStages(watched.journal)
    watched.serve("old")
    watched.later(100.0)
    watched.serve("new")
    assert read(watched, stages)["requests"] == 1
    watched.serve("newer")
    assert read(watched, stages)["requests"] == 1  # readers share an answer
    watched.later(FRESH_S)
    assert read(watched, stages)["requests"] == 2
    for number in range(MAX_REQUESTS):
        watched.tell(events.Accepted(f"r{number}", watched.now, f"x{number}", "chat"))
        watched.tell(events.Rejected(f"r{number}", watched.now, 400, "invalid_request", "no"))
    watched.later(FRESH_S)
    assert read(watched, stages)["requests"] == MAX_REQUESTS
