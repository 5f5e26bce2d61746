from prometheus_client import CollectorRegistry

from penstock.flow.identity import Source
from penstock.observe.speculation_metrics import SpeculationMetrics

STATS = {
    "steps": 7, "drafted": 12, "accepted": 5, "saved_s": -0.25, "drafted_by_position": [7, 5],
    "accepted_by_position": [4, 1],
    "audited": 9, "mismatches": 0,
}  # fmt: skip


def test_totals_by_replica_and_position() -> None:
    registry, metrics = CollectorRegistry(), SpeculationMetrics()
    registry.register(metrics)
    metrics.stats = {Source("m", 1): STATS}
    labels = {"model": "m", "replica": "1"}

    def value(name: str, **others: str) -> float | None:
        return registry.get_sample_value(f"penstock_spec_decode_{name}", labels | others)

    assert value("num_drafts_total") == 7
    assert value("num_draft_tokens_total") == 12
    assert value("num_accepted_tokens_total") == 5
    assert value("saved_seconds") == -0.25
    assert (value("num_audited_tokens_total"), value("num_audit_mismatches_total")) == (9, 0)
    assert value("num_accepted_tokens_per_pos_total", position="1") == 1
    metrics.stats = {}
    assert value("num_drafts_total") is None
