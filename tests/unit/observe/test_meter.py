from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from helpers.journal_driver import JournalDriver
from penstock.flow import FinishReason
from penstock.flow.record import Finding
from penstock.observe import events
from penstock.observe.meter import Meter
from penstock.observe.metrics import Metrics


def scraped(meter: Meter) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(meter)
    values = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "model")
            values[sample.name.removeprefix("penstock_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return values


def test_what_happened_is_what_is_scraped() -> None:
    meter = Meter("m")
    watched = JournalDriver(meter=meter)
    meter.journal = watched.journal
    watched.serve("a", tokens=5)
    watched.accept("b")
    watched.accept("c")
    watched.step({"b": 40}, let_in={"b": Finding()}, cached=16, waiting=1, blocked=2)
    watched.finish("b", FinishReason.ERROR, code="engine_died")
    watched.tell(events.Accepted("d", watched.now, "q", "chat"))
    watched.tell(events.Rejected("d", watched.now, 429, "queue_full", "later"))
    values = scraped(meter)
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


def test_processes_and_gpu_are_among_the_metrics() -> None:
    metrics = Metrics("m")
    gpu = {"utilisation": 0.25, "memory_used": 3, "memory_total": 8}
    options = {"restarts": 0, "ready": True, "open_requests": 0, "tasks": 1}
    without = metrics.text(None, **options).decode()  # type: ignore[arg-type]
    assert "process_resident_memory_bytes" in without
    assert "penstock_engine_process" not in without
    assert "penstock_gpu_utilization_ratio{" not in without
    told = metrics.text(None, **options, engine_pid=1, gpu=gpu).decode()  # type: ignore[arg-type]
    assert "penstock_engine_process_resident_memory_bytes" in told
    assert 'penstock_gpu_utilization_ratio{model="m"} 0.25' in told
