"""Metrics of speculation, from the totals of the engines at a scrape; the names are those of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.flow.identity import Source

LABELS = ("model", "replica")
TOTALS = (
    ("num_drafts", "Steps with drafted tokens.", "steps"),
    ("num_draft_tokens", "Tokens that were drafted.", "drafted"),
    ("num_accepted_tokens", "Of those, tokens that the model drew itself.", "accepted"),
    ("num_audited_tokens", "Tokens drawn again without drafts, to compare them.", "audited"),
    ("num_audit_mismatches", "Of those, tokens that were others then: a defect.", "mismatches"),
)
POSITIONS = (
    ("num_draft_tokens_per_pos", "Tokens drafted, by position in the draft.", "drafted_by_position"),
    ("num_accepted_tokens_per_pos", "Of those, tokens that were right.", "accepted_by_position"),
)


class SpeculationMetrics(Collector):
    def __init__(self) -> None:
        self.stats: dict[Source, dict[str, Any]] = {}  # of the engines that speculate, since they started

    def collect(self) -> Iterator[Metric]:
        for name, text, key in TOTALS:
            yield self._family(CounterMetricFamily(f"penstock_spec_decode_{name}", text, labels=LABELS), key)
        saved = GaugeMetricFamily(
            "penstock_spec_decode_saved_seconds", "Time of steps that drafts have saved, estimated.", labels=LABELS
        )
        yield self._family(saved, "saved_s")
        for name, text, key in POSITIONS:
            family = CounterMetricFamily(f"penstock_spec_decode_{name}", text, labels=[*LABELS, "position"])
            for source, stats in self.stats.items():
                for position, count in enumerate(stats[key]):
                    family.add_metric([source.model, str(source.replica), str(position)], count)
            yield family

    def _family(self, family: CounterMetricFamily | GaugeMetricFamily, key: str) -> Metric:
        for source, stats in self.stats.items():
            family.add_metric([source.model, str(source.replica)], stats[key])
        return family
