"""The Batch API in Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.batch.manager import BatchManager


class BatchCollector(Collector):
    """Counts since the start of the server; nothing before the API is used."""

    def __init__(self, manager: BatchManager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        runner = self._manager.runner
        if runner is None:
            return
        yield GaugeMetricFamily("penstock_batches_unfinished", "Batches that have not ended.", len(runner.jobs))
        running = self._manager.limiters.running
        yield GaugeMetricFamily("penstock_batch_lines_running", "Lines of batches that run now.", running)
        batches = CounterMetricFamily("penstock_batches", "Batches that have ended, by status.", labels=["status"])
        for status, count in runner.ended.items():
            batches.add_metric([status], count)
        lines = CounterMetricFamily("penstock_batch_lines", "Lines of batches that ran, by result.", labels=["result"])
        for result, count in runner.lines.items():
            lines.add_metric([result], count)
        yield from (batches, lines)
