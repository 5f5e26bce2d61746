import re

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from helpers.journal_driver import JournalDriver
from penstock.flow import FinishReason
from penstock.flow.identity import Source
from penstock.flow.record import Finding
from penstock.observe import events
from penstock.observe.metrics import JournalCollector, PrometheusMetrics, ReplicaStatus


def scraped(watched: JournalDriver) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(JournalCollector(watched.journal))
    values = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            assert sample.labels["model"] == "m"
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k not in ("model", "replica"))
            values[sample.name.removeprefix("penstock_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return values


def test_what_happened_is_what_is_scraped() -> None:
    watched = JournalDriver()
    watched.serve("a", tokens=5)
    watched.accept("b")
    watched.accept("c")
    watched.step({"b": 40}, admissions={"b": Finding()}, cached=16, waiting=1, blocked=2)
    watched.finish("b", FinishReason.ERROR, code="engine_died")
    watched.tell(events.Accepted("d", watched.now, "q", "chat"))
    watched.tell(events.Rejected("d", watched.now, 429, "queue_full", "later"))
    values = scraped(watched)
    assert values["steps_total"] == values["step_duration_seconds_count"] == values["batch_size_count"] == 6
    assert values["inter_token_latency_seconds_count"] == 4
    assert values["inter_token_latency_seconds_bucket{le=0.02}"] == 0
    assert values["inter_token_latency_seconds_bucket{le=0.03}"] == 4
    assert 4 * 0.021 <= values["inter_token_latency_seconds_sum"] <= 4 * 0.03
    assert values["iteration_tokens_sum"] == 40 + 4 + 40
    assert values["prefix_cache_queries_total"] == 80
    assert values["prefix_cache_hits_total"] == 16
    assert values["kv_cache_usage_perc"] == 0.1
    assert values["request_errors_total{code=engine_died}"] == values["request_errors_total{code=queue_full}"] == 1
    assert values["num_requests_waiting_by_reason{reason=slot}"] == 1
    assert values["request_prompt_tokens_count"] == 2


def test_errors_of_requests_for_unknown_models_have_a_label_of_their_own() -> None:
    watched = JournalDriver()
    watched.journal.find_model = {None: "m", "alias": "m", "other": "other"}.get
    for number, named in enumerate(["alias", "other", None, "x1", "x2", "x3"]):
        watched.tell(events.Accepted(str(number), watched.now, f"q{number}", "chat"))
        watched.tell(events.Parsed(str(number), watched.now, stream=False, model=named))
        watched.tell(events.Rejected(str(number), watched.now, 404, "model_not_found", "no"))
    text = PrometheusMetrics(watched.source, watched.journal).text([], open_requests={}, tasks=1).decode()
    found = dict(re.findall(r'penstock_request_errors_total\{code="model_not_found",model="(.*)"\} (.*)', text))
    assert found == {"m": "2.0", "other": "1.0", "unknown": "3.0"}


def test_a_replica_that_was_unloaded_has_no_gauges() -> None:
    first, second = Source("a"), Source("b")
    metrics = PrometheusMetrics(first, only_model=False)
    both = [ReplicaStatus(source, None, 0, True) for source in (first, second)]
    assert 'penstock_ready{model="b",replica="0"} 1.0' in metrics.text(both, open_requests={}, tasks=1).decode()
    text = metrics.text(both[:1], open_requests={"a": 2}, tasks=1).decode()
    assert 'penstock_ready{model="b"' not in text
    assert 'penstock_ready{model="a",replica="0"} 1.0' in text
    assert 'penstock_open_requests{model="a"} 2.0' in text


def test_processes_and_gpu_are_among_the_metrics() -> None:
    source = Source("m", 1)
    metrics = PrometheusMetrics(source)
    gpu = {"utilisation": 0.25, "memory_used": 3, "memory_total": 8}
    silent, up = ReplicaStatus(source, None, 0, True), ReplicaStatus(source, None, 0, True, pid=1)
    without = metrics.text([silent], open_requests={}, tasks=1).decode()
    assert "process_resident_memory_bytes" in without
    assert "penstock_engine_process" not in without
    assert "penstock_gpu_utilization_ratio{" not in without
    scrape = metrics.text([up], open_requests={}, tasks=1, gpu=gpu).decode()
    assert 'penstock_engine_process_resident_memory_bytes{model="m",replica="1"}' in scrape
    assert "# TYPE penstock_engine_process_cpu_seconds_total counter" in scrape
    assert 'penstock_gpu_utilization_ratio{model="m"} 0.25' in scrape
    assert "penstock_engine_process" not in metrics.text([silent], open_requests={}, tasks=1).decode()
