"""Objectives: measured, missed, explained, met again; and how others learn of it."""

import http.server
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.journal_driver import JournalDriver
from helpers.server_process import until
from penstock.errors import InvalidSetting
from penstock.flow import FinishReason, record
from penstock.flow.record import Finding
from penstock.observe import events
from penstock.observe.history import History
from penstock.observe.machine import MachineUse
from penstock.observe.slo.monitor import SloMonitor
from penstock.observe.slo.webhook import Webhook
from penstock.settings import ObserveSettings, load


class Watch:
    def __init__(self, **objectives: Any) -> None:
        self.told: list[dict[str, Any]] = []
        self.ready = True
        self.watched = JournalDriver()
        self.history = History(self.watched.journal)
        settings = ObserveSettings(**objectives)
        self.monitor = SloMonitor(self.watched.journal, self.history, settings, lambda: self.ready, [self.told.append])

    def beat(self, gpu: dict[str, Any] | None = None) -> None:
        self.history.sample(gpu)
        self.monitor.evaluate()

    def value(self, name: str) -> Any:
        return next(one for one in self.monitor.status()["objectives"] if one["name"] == name)


def test_all_objectives_are_listed_and_judged_only_where_there_is_a_target_and_data() -> None:
    watch = Watch(slo_ttft_p95=1.0)
    assert [one["name"] for one in watch.monitor.status()["objectives"]] == [
        "ttft_p95", "tokens_per_s_p50", "error_rate", "kv_use", "gpu_memory", "queue_depth",
    ]  # fmt: skip
    assert watch.value("ttft_p95") | {"value": None, "samples": 0, "ok": None} == watch.value("ttft_p95")
    watch.watched.serve("a")
    assert watch.value("ttft_p95")["ok"] is True
    assert watch.value("ttft_p95")["value"] == pytest.approx(0.0261, abs=1e-3)
    assert watch.value("tokens_per_s_p50")["ok"] is None
    assert watch.value("tokens_per_s_p50")["value"] == pytest.approx(2 / 0.0432, rel=0.05)


def test_an_alert_begins_and_ends_once_and_only_with_enough_to_go_by() -> None:
    watch = Watch(slo_ttft_p95=0.01, slo_window_s=60.0)
    for place in range(4):
        watch.watched.serve(f"a{place}")
        watch.beat()
    assert not watch.told, "four requests say little"
    for place in range(4):
        watch.watched.serve(f"b{place}")
        watch.beat()
    assert len(watch.told) == 1
    assert watch.told[0]["until"] is None
    assert watch.monitor.alerts()[0]["objective"] == "ttft_p95"
    watch.watched.later(61.0)  # the window has passed
    watch.beat()
    assert len(watch.told) == 1, "one calm look is not enough"
    watch.beat()
    assert len(watch.told) == 2
    assert watch.told[1]["until"] is not None
    assert watch.told[1]["id"] == watch.told[0]["id"]
    assert not watch.monitor.alerts()
    assert watch.monitor.status()["recent"][0]["id"] == watch.told[0]["id"]


def serve_slowly(
    watched: JournalDriver, name: str, *, queue: float = 0.0, prefill: float = 0.02, **options: Any
) -> None:
    watched.accept(name)
    watched.later(queue)
    finding = options.pop("finding", Finding(record.NOTHING_ALIKE))
    watched.step({name: 40}, admissions={name: finding}, seconds=prefill, **options)
    watched.step({name: 1}, finish={name: FinishReason.LENGTH})
    watched.finish(name)


@pytest.mark.parametrize(
    ("options", "cause", "words"),
    [
        ({"queue": 3.0, "waits": {"slot": 3_000_000}}, "queue", "a slot"),
        ({"queue": 3.0, "waits": {"blocks": 3_000_000}, "finding": Finding(record.EVICTED, 30, 16)},
         "cache_thrashing", "KV blocks"),
        ({"prefill": 3.0}, "long_prefill", "40 new tokens"),
        ({"prefill": 3.0, "finding": Finding(record.EVICTED, 30, 16)}, "cache_thrashing", "evicted"),
    ],
)  # fmt: skip
def test_a_late_first_token_has_a_cause(options: dict[str, Any], cause: str, words: str) -> None:
    watch = Watch(slo_ttft_p95=1.0)
    for place in range(6):
        serve_slowly(watch.watched, f"a{place}", **options)
    watch.beat()
    (alert,) = watch.told
    assert alert["cause"] == cause
    assert words in alert["message"]
    assert " s, above 1 s: " in alert["message"]
    assert set(alert["requests"]) <= {f"a{place}" for place in range(6)}


def test_a_slow_answer_may_be_its_readers_fault() -> None:
    watch = Watch(slo_tokens_per_s_p50=1000.0)
    for place in range(6):
        name = f"a{place}"
        watch.watched.accept(name)
        watch.watched.step({name: 40}, admissions={name: Finding()})
        watch.watched.write(name, seconds=5.0)
        watch.watched.step({name: 1}, finish={name: FinishReason.LENGTH})
        watch.watched.finish(name)
    watch.beat()
    assert watch.told[0]["cause"] == "slow_client"


def test_failures_are_counted_but_not_those_of_clients() -> None:
    watch = Watch(slo_error_rate=0.1)
    for place in range(10):
        watch.watched.tell(events.Accepted(f"x{place}", watch.watched.now, "q", "chat"))
        watch.watched.tell(events.Rejected(f"x{place}", watch.watched.now, 400, "invalid_request", "no"))
        watch.watched.accept(f"c{place}")
        watch.watched.finish(f"c{place}", FinishReason.CANCELLED)
    watch.beat()
    assert watch.value("error_rate")["value"] == 0.0
    for place in range(10):
        watch.watched.accept(f"e{place}")
        watch.watched.finish(f"e{place}", FinishReason.ERROR, code="engine_died")
    watch.beat()
    assert watch.value("error_rate")["value"] == 0.5
    assert watch.told[0]["cause"] == "engine_down"
    assert watch.told[0]["message"].startswith("Error rate is 50%, above 10%: ")


def test_levels_are_means_over_the_window() -> None:
    watch = Watch(slo_kv_use=0.5, slo_queue_depth=1)
    watch.watched.accept("a")
    watch.watched.accept("b")
    watch.watched.accept("c")
    watch.watched.step({"a": 40}, admissions={"a": Finding()}, blocks=(90, 0, 0, 0, 10), waiting=2, blocked=record.SLOT)
    watch.beat()
    assert {alert["objective"]: alert["cause"] for alert in watch.told} == {"kv_use": "load", "queue_depth": "queue"}
    assert "max_sequences" in watch.told[1]["message"]
    assert watch.value("kv_use")["value"] == 0.9
    assert watch.value("queue_depth")["value"] == 2
    watch.ready = False
    watch.beat()
    assert watch.monitor.open["queue_depth"].cause.name == "engine_down"


def test_gpu_memory_is_the_most_of_the_window_and_none_without_a_gpu() -> None:
    watch = Watch(slo_gpu_memory=0.9)
    watch.beat()
    assert (watch.value("gpu_memory")["value"], watch.value("gpu_memory")["ok"]) == (None, None)
    for used in (60e9, 76e9, 40e9):
        watch.beat({"utilisation": 0.5, "memory_used": used, "memory_total": 80e9})
    assert watch.value("gpu_memory")["value"] == pytest.approx(0.95)
    (alert,) = watch.told
    assert alert["cause"] == "gpu_memory"
    assert alert["message"] == (
        "GPU memory usage is 95%, above 90%: all processes use 76.0 GB, 16.0 GB more than at the window's least"
    )


def test_the_history_has_columns_of_equal_length() -> None:
    watch = Watch()
    assert watch.history.columns(900, 10)["t"] == []
    for place in range(25):
        watch.watched.serve(f"a{place}")
        machine = MachineUse(
            cpu=0.5 if place else None, server_cpu=0.25, memory_used=place, memory_total=99, server_memory=5
        )
        watch.history.sample({"utilisation": 0.5, "memory_used": 7, "memory_total": 10}, machine)
    told = watch.history.columns(900, 10)
    lengths = {len(values) for name, values in told.items() if name != "interval_s"}
    assert lengths == {9}
    assert told["interval_s"] == 6.0
    assert told["requests_per_s"] == [0.5] * 9
    assert (told["gpu_memory"][0], told["gpu_memory_total"][0]) == (7, 10)
    assert (told["cpu"][0], told["server_cpu"][0]) == (0.5, 0.25)
    assert (told["memory"][0], told["memory_total"][0], told["server_memory"][0]) == (2, 99, 5)
    assert told["prefix_hit_ratio"][0] == 0.0


def test_the_history_has_percentiles_of_what_happened_between_two_points() -> None:
    watch = Watch()
    watched = watch.watched
    watched.accept("a")
    watched.later(1.0)  # in the queue
    watched.step({"a": 40}, admissions={"a": Finding()})
    for seconds in (0.01,) * 90 + (0.2,) * 10:
        watched.step({"a": 1}, seconds=seconds)
    watched.finish("a")
    watch.beat()
    watched.serve("b")
    watch.beat()
    told = watch.history.columns(900, 10)
    assert told["inter_token_us_p50"][0] == pytest.approx(10_000, rel=0.2)  # with what a step takes beside
    assert told["inter_token_us_p99"][0] == pytest.approx(200_000, rel=0.05)
    assert told["inter_token_us_p99"][1] < 100_000  # of its own point
    assert told["queue_us_p95"][0] == pytest.approx(1_000_000, rel=0.1)
    assert told["e2e_us_p50"][0] == told["e2e_us_p99"][0] > 3_900_000


# --- the webhook


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.got.append((self.path, body))  # type: ignore[attr-defined]
        code = self.server.codes.pop(0) if self.server.codes else 200  # type: ignore[attr-defined]
        self.send_response(code)
        if code == 302:
            self.send_header("location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Any]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.got, server.codes = [], []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_webhook_is_told_and_tried_again(receiver: Any) -> None:
    receiver.codes += [500, 500]
    hook = Webhook(f"http://127.0.0.1:{receiver.server_port}/s3cret", pause_s=0.01)
    hook.post({"id": 1, "until": None})
    until(lambda: len(receiver.got) == 3, "the third try")
    hook.post({"id": 1, "until": 5})
    until(lambda: len(receiver.got) == 4, "the next alert")
    assert receiver.got[-1] == ("/s3cret", {"source": "penstock", "state": "over", "id": 1, "until": 5})


def test_a_webhook_goes_nowhere_else_and_keeps_its_address(receiver: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.codes += [302, 302, 302]
    Webhook(f"http://127.0.0.1:{receiver.server_port}/s3cret", pause_s=0.01).post({"id": "away", "until": None})
    until(lambda: "did not accept alert away" in caplog.text, "giving up")  # not one of an earlier test
    assert {path for path, _ in receiver.got} == {"/s3cret"}
    assert "s3cret" not in caplog.text


def test_a_webhook_that_does_not_keep_up_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    hook = Webhook("http://127.0.0.1:9/", pause_s=0.01)
    monkeypatch.setattr(hook, "_send", lambda alert: gate.wait(600))
    for place in range(1000):
        hook.post({"id": place, "until": None})
    assert hook._waiting.qsize() <= 100


@pytest.mark.parametrize("name", ["slo_webhook", "otel_endpoint"])
def test_an_address_must_be_one_and_is_not_repeated(name: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        load({name: "ftp://user:s3cret@host", "slo_error_rate": 0.1}, environ={})
    assert raised.value.param == name
    assert "s3cret" not in raised.value.message
