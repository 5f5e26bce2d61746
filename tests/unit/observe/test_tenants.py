"""What one tenant does is no business of the others: they see it in sums only."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.journal_driver import JournalDriver
from penstock.flow import record
from penstock.flow.record import Finding
from penstock.observe.gpu import Gpu
from penstock.observe.history import History
from penstock.observe.live_feed import LiveFeed
from penstock.observe.observer import Observer
from penstock.observe.slo.monitor import SloMonitor
from penstock.observe.trace.step_window import step_window
from penstock.observe.trace.views import View, ViewedModel
from penstock.settings import ObserveSettings


class NoText:
    def decode(self, tokens: list[int], *, skip_special: bool = True) -> str:
        return ""


def observer_of(watched: JournalDriver, **objectives: Any) -> Observer:
    history = History(watched.journal)
    monitor = SloMonitor(watched.journal, history, ObserveSettings(**objectives), lambda: True)
    view = View(watched.journal, {watched.source.model: ViewedModel(NoText(), 16)}.get)
    return Observer(watched.journal, history, monitor, view, Gpu())


@pytest.fixture
def watched() -> JournalDriver:
    """Alice and Bob share steps: hers has ended, as has one of his; one of each is open."""
    watched = JournalDriver()
    for name in ("alice", "bob"):
        watched.serve(f"{name}1", tenant=name)
        watched.accept(name, tenant=name)
    both = {name: Finding(record.NOTHING_ALIKE) for name in ("alice", "bob")}
    watched.step({"alice": 40, "bob": 40}, admissions=both, cached=16)
    watched.step({"alice": 1, "bob": 1})
    return watched


def test_requests_are_found_by_their_tenant_alone(watched: JournalDriver) -> None:
    journal = watched.journal
    assert {request.id for request in journal.requests("bob")} == {"bob", "bob1"}
    assert journal.counts == {"alice": 2, "bob": 2}
    for name in ("alice1", "chatcmpl-alice1", "req-alice1", "1"):
        assert journal.find(name, "alice") is not None
        for other in ("bob", ""):
            assert journal.find(name, other) is None


def test_a_request_id_that_another_chose_too_leads_to_ones_own() -> None:
    """Whether that is another's x-request-id, or the id of another's answer."""
    watched = JournalDriver(max_done=2)
    watched.accept("hers", tenant="alice", request_id="same")
    watched.accept("his", tenant="bob", request_id="same")
    watched.accept("third", tenant="bob", request_id="hers")
    for name, tenant, expected in (("same", "alice", "hers"), ("same", "bob", "his"), ("hers", "bob", "third")):
        found = watched.journal.find(name, tenant)
        assert found is not None
        assert found.id == expected
    for name in ("his", "third"):
        watched.finish(name)
    watched.serve("later", tenant="bob")  # pushes out his first
    assert watched.journal.find("same", "bob") is None
    assert watched.journal.find("same", "alice") is not None


def test_the_timeline_names_ones_own_sequences_and_counts_all(watched: JournalDriver) -> None:
    hers, his, nobodys = (step_window(watched.journal, 1, 99, 100, tenant=name) for name in ("alice", "bob", ""))
    assert hers["steps"] == his["steps"] == nobodys["steps"]
    assert his["steps"]["rows"][-1] == 2
    own = {sequence.number for request in watched.journal.requests("bob") for sequence in request.sequences}
    assert set(his["rows"]["seq"]) == {mark["seq"] for mark in his["marks"]} == set(his["sequences"]) == own
    assert not own & set(hers["rows"]["seq"])
    assert (nobodys["rows"]["seq"], nobodys["marks"], nobodys["sequences"]) == ([], [], {})


def test_forgotten_sequences_are_shown_where_there_is_but_one_tenant() -> None:
    for tenant, shown in (("", {1, 2}), ("bob", {2})):
        watched = JournalDriver(max_done=1)
        for name in "ab":
            watched.serve(name, tenant=tenant)
        assert set(step_window(watched.journal, 1, 99, 100, tenant=tenant)["rows"]["seq"]) == shown


def test_the_live_feed_tells_of_ones_own(watched: JournalDriver) -> None:
    feed = LiveFeed(observer_of(watched), steps=True, tenant="bob")
    for name in ("alice2", "bob2"):
        watched.serve(name, tenant=name[:-1])
    tick = feed.tick(ready=True, restarts=0)
    assert [request["id"] for request in tick["requests"]] == ["bob", "bob2"]
    assert (tick["stats"]["requests"], tick["stats"]["running"]) == (4, 2)  # of all
    assert "alice" not in json.dumps(tick)


def test_alerts_name_ones_own_requests_as_examples() -> None:
    watched = JournalDriver()
    told: list[dict[str, Any]] = []
    monitor = SloMonitor(
        watched.journal, History(watched.journal), ObserveSettings(slo_ttft_p95=0.001), lambda: True, [told.append]
    )
    for place in range(3):
        for name in ("alice", "bob"):
            watched.serve(f"{name}{place}", tenant=name)
    monitor.evaluate()
    (alert,) = told
    assert {name[:-1] for name in alert["requests"]} == {"alice", "bob"}  # the operator's webhook has all
    for shown in (monitor.alerts("bob"), monitor.status("bob")["alerts"]):
        assert {name[:-1] for name in shown[0]["requests"]} == {"bob"}
        assert shown[0] | {"requests": []} == alert | {"requests": []}
    watched.later(1000)
    for _ in range(2):
        monitor.evaluate()
    assert {name[:-1] for name in monitor.status("bob")["recent"][0]["requests"]} == {"bob"}
