"""Prometheus metrics. Names and buckets follow what dashboards for inference servers already know."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from penstock.flow import FinishReason, Timings

FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)  # per token
SLOW_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # per request


class Metrics:
    """One per server: its own registry, so that two of them in a process do not meet."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self.model = model
        self.requests = self._counter("requests", "Sequences that ended, by reason.", "finish")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that ended: each prompt once.")
        self.cached_tokens = self._counter("cached_tokens", "Of those, found in the prefix cache.")
        self.output_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.first_token = self._histogram("time_to_first_token", "Arrival to first token.", SLOW_S)
        self.per_token = self._histogram("time_per_output_token", "Mean time between output tokens.", FAST_S)
        self.whole = self._histogram("e2e_request_latency", "Arrival to end.", SLOW_S)
        self.queue = self._histogram("request_queue_time", "Arrival to first scheduling.", SLOW_S)
        self.prefill = self._histogram("request_prefill_time", "First scheduling to first token.", SLOW_S)
        self.decode = self._histogram("request_decode_time", "First token to end.", SLOW_S)
        self.open = self._gauge("open_requests", "Requests whose clients wait for an answer or more of it.")
        self.tasks = self._gauge("event_loop_tasks", "What the frontend has under way, connections included.")
        self.running = self._gauge("num_requests_running", "Sequences that run.")
        self.waiting = self._gauge("num_requests_waiting", "Sequences that wait.")
        self.blocks = self._gauge("kv_blocks", "KV blocks, by state.", "group", "state")
        self.restarts = self._gauge("engine_restarts", "Engine processes that died and were replaced.")
        self.ready = self._gauge("ready", "1 while requests are taken.")
        self.gpu_used = self._gauge("gpu_memory_used_bytes", "Memory of the GPU in use, by anybody.")
        self.gpu_total = self._gauge("gpu_memory_total_bytes", "Memory of the GPU.")
        self.gpu_busy = self._gauge("gpu_utilization_ratio", "Share of the time that the GPU computes.")
        self.engine_pid: int | None = None
        ProcessCollector(registry=self.registry)
        ProcessCollector("penstock_engine", pid=self._engine_pid, registry=self.registry)

    def add(self, collector: Collector) -> None:
        self.registry.register(collector)

    def _engine_pid(self) -> int:
        """Of no process, if there is none: the collector then has nothing to say."""
        return -1 if self.engine_pid is None else self.engine_pid

    def ended(
        self, finish: FinishReason, prompt_tokens: int, cached_tokens: int, output_tokens: int, timings: Timings | None
    ) -> None:
        self.requests.labels(self.model, finish.value).inc()
        self.prompt_tokens.labels(self.model).inc(prompt_tokens)
        self.cached_tokens.labels(self.model).inc(cached_tokens)
        self.output_tokens.labels(self.model).inc(output_tokens)
        if timings is None:
            return
        self.queue.labels(self.model).observe(timings.queue_s)
        self.whole.labels(self.model).observe(timings.finished - timings.arrival)
        if timings.first_token_s is not None and timings.decode_s is not None:
            self.first_token.labels(self.model).observe(timings.first_token_s)
            self.prefill.labels(self.model).observe(timings.prefill_s or 0.0)
            self.decode.labels(self.model).observe(timings.decode_s)
            if output_tokens > 1:
                self.per_token.labels(self.model).observe(timings.decode_s / (output_tokens - 1))

    def text(
        self,
        stats: dict[str, Any] | None,
        *,
        restarts: int,
        ready: bool,
        open_requests: int,
        tasks: int,
        engine_pid: int | None = None,
        gpu: dict[str, Any] | None = None,
    ) -> bytes:
        """The exposition; `stats` are the engine's own, None while there is no engine to ask."""
        self.open.labels(self.model).set(open_requests)
        self.tasks.labels(self.model).set(tasks)
        self.ready.labels(self.model).set(ready)
        self.restarts.labels(self.model).set(restarts)
        self.engine_pid = engine_pid
        if gpu is not None:
            self.gpu_used.labels(self.model).set(gpu["memory_used"])
            self.gpu_total.labels(self.model).set(gpu["memory_total"])
            self.gpu_busy.labels(self.model).set(gpu["utilisation"])
        if stats is not None:
            self.running.labels(self.model).set(stats["running"])
            self.waiting.labels(self.model).set(stats["waiting"])
            for group, usage in enumerate(stats["blocks"]):
                for state, count in usage.items():
                    self.blocks.labels(self.model, group, state).set(count)
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        counter = Counter(f"penstock_{name}", help_text, ("model", *labels), registry=self.registry)
        if not labels:
            counter.labels(self.model)  # there from the start, at 0
        return counter

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"penstock_{name}", help_text, ("model", *labels), registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"penstock_{name}_seconds", help_text, ("model",), registry=self.registry, buckets=buckets)
