"""Usage since the start, by tenant and model: for Prometheus."""

from __future__ import annotations

from collections import Counter

from penstock.gateway.ledger.record import UsageRecord

MAX_LABELS = 500  # pairs of tenant and model with time series of their own
OTHER = "other"  # the tenant of all further ones


class UsageTotals:
    """Counts in plain dictionaries: a scrape makes metrics of them."""

    def __init__(self, max_labels: int = MAX_LABELS) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[tuple[str, str, str]] = Counter()  # with the kind
        self.microusd: Counter[tuple[str, str]] = Counter()
        self.saved_microusd: Counter[tuple[str, str]] = Counter()
        self._max_labels = max_labels

    def add(self, record: UsageRecord) -> None:
        labels = (record.tenant, record.model)
        if labels not in self.requests and len(self.requests) >= self._max_labels:
            labels = (OTHER, record.model)
        self.requests[labels] += 1
        for kind, count in (
            ("input", record.input - record.cached),
            ("cached", record.cached),
            ("output", record.output),
            ("drafted", record.drafted),
        ):
            if count:
                self.tokens[*labels, kind] += count
        self.microusd[labels] += record.microusd
        self.saved_microusd[labels] += record.saved_microusd
