"""Prometheus metrics. Each is labelled with the model and, where one produces it, the replica.

PrometheusMetrics   the registry of a server, the metrics of finished sequences, and the text of a scrape
JournalCollector    metrics of what the journal has counted, made at a scrape
EngineProcesses     memory and CPU time of the engine processes, read at a scrape
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.flow import FinishReason, Timings
from penstock.flow.identity import Source
from penstock.observe.histogram import REQUEST_LATENCY_S, TOKEN_LATENCY_S
from penstock.observe.speculation_metrics import SpeculationMetrics
from penstock.observe.tenant_metrics import TenantMetrics
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.replica import ReplicaTrace

SOURCE_LABELS = ("model", "replica")


class ReplicaStatus(NamedTuple):
    """How a replica is at the time of a scrape."""

    source: Source
    stats: dict[str, Any] | None  # the engine's own; None while it does not answer
    restarts: int
    ready: bool
    pid: int | None = None


class PrometheusMetrics:
    """One per server, with a registry of its own: two servers in a process do not share metrics."""

    def __init__(self, source: Source, journal: Journal | None = None, *, only_model: bool = True) -> None:
        """`source` is the server's first replica, whose counters are there from the start, at 0. `only_model`: metrics
        of the whole server have its label; if there are others, an empty one."""
        self.registry = CollectorRegistry()
        self.tenants = TenantMetrics()  # with a registry of its own, for admins
        self._model = source.model if only_model else ""
        self._first = _labels(source)
        self._sources: set[Source] = set()  # of the last scrape
        self.requests = self._counter("requests", "Sequences that ended, by reason.", "finish")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that ended: each prompt once.")
        self.cached_tokens = self._counter("cached_tokens", "Of those, found in the prefix cache.")
        self.output_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.ttft = self._latency("time_to_first_token", "Arrival to first token.")
        self.per_token = self._latency("time_per_output_token", "Mean time between output tokens.", TOKEN_LATENCY_S)
        self.e2e = self._latency("e2e_request_latency", "Arrival to end.")
        self.queue = self._latency("request_queue_time", "Arrival to first scheduling.")
        self.prefill = self._latency("request_prefill_time", "First scheduling to first token.")
        self.decode = self._latency("request_decode_time", "First token to end.")
        self.running = self._gauge("num_requests_running", "Sequences that run.")
        self.waiting = self._gauge("num_requests_waiting", "Sequences that wait.")
        self.blocks = self._gauge("kv_blocks", "KV blocks, by state.", "group", "state")
        self.restarts = self._gauge("engine_restarts", "Engine processes that died and were replaced.")
        self.ready = self._gauge("ready", "1 while requests are taken.")
        # Of the frontend and the machine, which all replicas share:
        self.open = self._server_gauge("open_requests", "Requests whose clients wait for an answer or more of it.")
        self.tasks = self._server_gauge("event_loop_tasks", "Tasks of the frontend, connections included.")
        self.gpu_used = self._server_gauge("gpu_memory_used_bytes", "GPU memory in use, by all processes.")
        self.gpu_total = self._server_gauge("gpu_memory_total_bytes", "Memory of the GPU.")
        self.gpu_busy = self._server_gauge("gpu_utilization_ratio", "Share of the time that the GPU computes.")
        ProcessCollector(registry=self.registry)
        self._processes = EngineProcesses()
        self.registry.register(self._processes)
        self._speculation = SpeculationMetrics()
        self.registry.register(self._speculation)
        if journal is not None:
            self.registry.register(JournalCollector(journal))

    def count_ended(
        self,
        source: Source,
        finish: FinishReason,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        timings: Timings | None,
    ) -> None:
        """A sequence has ended. `prompt_tokens` and `cached_tokens` are 0 for all choices of a prompt but the first."""
        labels = _labels(source)
        self.requests.labels(*labels, finish.value).inc()
        self.prompt_tokens.labels(*labels).inc(prompt_tokens)
        self.cached_tokens.labels(*labels).inc(cached_tokens)
        self.output_tokens.labels(*labels).inc(output_tokens)
        if timings is None:
            return
        self.queue.labels(*labels).observe(timings.queue_s)
        self.e2e.labels(*labels).observe(timings.finished - timings.arrival)
        if timings.first_token_s is not None and timings.decode_s is not None:
            self.ttft.labels(*labels).observe(timings.first_token_s)
            self.prefill.labels(*labels).observe(timings.prefill_s or 0.0)
            self.decode.labels(*labels).observe(timings.decode_s)
            if output_tokens > 1:
                self.per_token.labels(*labels).observe(timings.decode_s / (output_tokens - 1))

    def text(
        self,
        replicas: Sequence[ReplicaStatus],
        *,
        open_requests: Mapping[str, int],
        tasks: int,
        gpu: dict[str, Any] | None = None,
    ) -> bytes:
        """The exposition. `open_requests`: by model."""
        for model, count in open_requests.items():
            self.open.labels(model).set(count)
        self.tasks.labels(self._model).set(tasks)
        if gpu is not None:
            self.gpu_used.labels(self._model).set(gpu["memory_used"])
            self.gpu_total.labels(self._model).set(gpu["memory_total"])
            self.gpu_busy.labels(self._model).set(gpu["utilisation"])
        self._forget_unloaded({replica.source for replica in replicas})
        for replica in replicas:
            self._set_gauges(replica)
        stats = {replica.source: (replica.stats or {}).get("speculation") for replica in replicas}
        self._speculation.stats = {source: own for source, own in stats.items() if own is not None}
        self._processes.pids = {replica.source: replica.pid for replica in replicas if replica.pid is not None}
        return generate_latest(self.registry)

    def _forget_unloaded(self, sources: set[Source]) -> None:
        """Gauges are of replicas that are there; counters stay."""
        if self._sources - sources:
            for gauge in (self.running, self.waiting, self.blocks, self.restarts, self.ready):
                gauge.clear()
        self._sources = sources

    def _set_gauges(self, replica: ReplicaStatus) -> None:
        labels, stats = _labels(replica.source), replica.stats
        self.ready.labels(*labels).set(replica.ready)
        self.restarts.labels(*labels).set(replica.restarts)
        if stats is not None:
            self.running.labels(*labels).set(stats["running"])
            self.waiting.labels(*labels).set(stats["waiting"])
            for group, usage in enumerate(stats["blocks"]):
                for state, count in usage.items():
                    self.blocks.labels(*labels, group, state).set(count)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        counter = Counter(f"penstock_{name}", help_text, (*SOURCE_LABELS, *labels), registry=self.registry)
        if not labels:
            counter.labels(*self._first)
        return counter

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"penstock_{name}", help_text, (*SOURCE_LABELS, *labels), registry=self.registry)

    def _server_gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(f"penstock_{name}", help_text, ("model",), registry=self.registry)

    def _latency(self, name: str, help_text: str, bounds: tuple[float, ...] = REQUEST_LATENCY_S) -> Histogram:
        name = f"penstock_{name}_seconds"
        return Histogram(name, help_text, SOURCE_LABELS, registry=self.registry, buckets=bounds)


class JournalCollector(Collector):
    """The journal only counts, in plain lists: a step may cost microseconds, no more."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def collect(self) -> Iterator[Metric]:
        replicas = list(self._journal.replicas.values())
        yield from _histograms(replicas)
        yield from _counters(replicas)
        usage = GaugeMetricFamily(
            "penstock_kv_cache_usage_perc", "KV blocks in use, 1 is all.", labels=list(SOURCE_LABELS)
        )
        waiting = GaugeMetricFamily(
            "penstock_num_requests_waiting_by_reason", "Sequences that wait, by reason.",
            labels=[*SOURCE_LABELS, "reason"],
        )  # fmt: skip
        for replica in replicas:
            usage.add_metric(_labels(replica.source), replica.level.kv_use)
            for reason, count in self._journal.waiting_by_reason(replica.source).items():
                waiting.add_metric([*_labels(replica.source), reason], count)
        errors = CounterMetricFamily(
            "penstock_request_errors", "Requests that failed, by kind.", labels=["model", "code"]
        )
        for (model, code), count in list(self._journal.errors.items()):
            errors.add_metric([model, code], count)
        yield from (usage, waiting, errors)


def _histograms(replicas: list[ReplicaTrace]) -> Iterator[Metric]:
    for name, help_text, attribute in (
        ("inter_token_latency_seconds", "Between two tokens of a sequence.", "token_gap_s"),
        ("step_duration_seconds", "Of an engine step.", "step_s"),
        ("iteration_tokens", "Tokens computed in a step.", "step_tokens"),
        ("batch_size", "Sequences in a step.", "batch_size"),
        ("request_prompt_tokens", "Prompt tokens of a request.", "prompt_tokens"),
        ("request_generation_tokens", "Output tokens of a request.", "output_tokens"),
    ):
        family = HistogramMetricFamily(f"penstock_{name}", help_text, labels=list(SOURCE_LABELS))
        for replica in replicas:
            counted = getattr(replica, attribute)
            family.add_metric(_labels(replica.source), counted.cumulative(), counted.sum)
        yield family


def _counters(replicas: list[ReplicaTrace]) -> Iterator[Metric]:
    names = (
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
        ("prefix_cache_hits", "Of those, found."),
        ("num_preemptions", "Sequences preempted."),
        ("kv_evictions", "Cached KV blocks that were evicted."),
        ("steps", "Engine steps."),
    )
    families = [CounterMetricFamily(f"penstock_{name}", text, labels=list(SOURCE_LABELS)) for name, text in names]
    for replica in replicas:
        totals = replica.totals
        values = (
            totals.prompt_tokens, totals.hit_tokens, totals.preemptions, replica.level.evictions, totals.steps
        )  # fmt: skip
        for family, value in zip(families, values, strict=True):
            family.add_metric(_labels(replica.source), value)
    yield from families


class EngineProcesses(Collector):
    """prometheus_client's process metrics, of each engine process."""

    def __init__(self) -> None:
        self.pids: dict[Source, int] = {}

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for source, pid in self.pids.items():
            labels = dict(zip(SOURCE_LABELS, _labels(source), strict=True))
            for found in ProcessCollector("penstock_engine", pid=partial(int, pid), registry=None).collect():
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    family.add_sample(sample.name, {**sample.labels, **labels}, sample.value)
        yield from families.values()


def _labels(source: Source) -> tuple[str, str]:
    return source.model, str(source.replica)
