"""Prometheus metrics of the engine's steps and of what the journal has counted.

They are kept as plain lists and made into samples only when somebody scrapes: a step may cost microseconds, no more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.flow.record import StepRecord
from penstock.observe.history import kv_use
from penstock.observe.journal import Journal
from penstock.observe.metrics import FAST_S
from penstock.observe.trace.records import RequestTrace

STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Tally:
    """A histogram that only counts."""

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...]) -> None:
        self.name, self.help_text = f"penstock_{name}", help_text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, model: str) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self.name, self.help_text, labels=["model"])
        buckets, total = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
        family.add_metric([model], buckets, self._sum)
        return family


class Meter(Collector):
    """The journal's meter, and a collector of its registry."""

    def __init__(self, model: str) -> None:
        self.journal: Journal | None = None
        self._model = model
        self._gaps = Tally("inter_token_latency_seconds", "Between two tokens of a sequence.", FAST_S)
        self._step_s = Tally("step_duration_seconds", "Of an engine step.", STEP_S)
        self._tokens = Tally("iteration_tokens", "Tokens computed in a step.", TOKENS)
        self._rows = Tally("batch_size", "Sequences in a step.", ROWS)
        self._prompts = Tally("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._outputs = Tally("request_generation_tokens", "Output tokens of a request.", TOKENS)
        self._errors: Counter[str] = Counter()

    # --- what the journal tells

    def stepped(self, step: StepRecord) -> None:
        self._step_s.add(step.settled_us * 1e-6)
        self._tokens.add(step.tokens)
        self._rows.add(len(step.words))

    def token_gaps(self, gaps: dict[float, int]) -> None:
        for seconds, times in gaps.items():
            self._gaps.add(seconds, times)

    def closed(self, request: RequestTrace) -> None:
        if request.queued is not None:
            self._prompts.add(request.prompt_tokens)
            self._outputs.add(request.output_tokens)
        if request.code is not None:
            self._errors[request.code] += 1

    # --- what Prometheus asks

    def collect(self) -> Iterator[Metric]:
        for tally in (self._gaps, self._step_s, self._tokens, self._rows, self._prompts, self._outputs):
            yield tally.family(self._model)
        errors = CounterMetricFamily(
            "penstock_request_errors", "Requests that failed, by kind.", labels=["model", "code"]
        )
        for code, count in self._errors.items():
            errors.add_metric([self._model, code], count)
        yield errors
        if self.journal is not None:
            yield from self._counted(self.journal)

    def _counted(self, journal: Journal) -> Iterator[Metric]:
        totals, level = journal.totals, journal.level
        yield self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", totals.prompt_tokens
        )
        yield self._counter("prefix_cache_hits", "Of those, found.", totals.hit_tokens)
        yield self._counter("num_preemptions", "Sequences sent back to wait.", totals.preemptions)
        yield self._counter("kv_evictions", "Cached KV blocks that had to make room.", level.evictions)
        yield self._counter("steps", "Engine steps.", totals.steps)
        usage = GaugeMetricFamily("penstock_kv_cache_usage_perc", "KV blocks in use, 1 is all.", labels=["model"])
        usage.add_metric([self._model], kv_use(journal))
        yield usage
        waiting = GaugeMetricFamily(
            "penstock_num_requests_waiting_by_reason", "Sequences that wait, by what for.", labels=["model", "reason"]
        )
        for reason, count in journal.waiting_by_reason().items():
            waiting.add_metric([self._model, reason], count)
        yield waiting

    def _counter(self, name: str, help_text: str, value: int) -> CounterMetricFamily:
        family = CounterMetricFamily(f"penstock_{name}", help_text, labels=["model"])
        family.add_metric([self._model], value)
        return family
