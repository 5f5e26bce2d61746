from penstock.flow.identity import Source
from penstock.observe.tenant_metrics import TenantMetrics

SOURCE = Source("m", 1)


def row(tenant: str, cost: int, running: int = 1, waiting: int = 0) -> dict[str, str | int]:
    return {"tenant": tenant, "tier": 1, "cost": cost, "running": running, "waiting": waiting}


def test_tiers_of_a_tenant_are_added_up() -> None:
    text = TenantMetrics().text({SOURCE: [row("a", 10), row("a", 5, waiting=3)]}).decode()
    assert 'penstock_tenant_service_total{model="m",replica="1",tenant="a"} 15.0' in text
    assert 'penstock_tenant_running{model="m",replica="1",tenant="a"} 2.0' in text
    assert 'penstock_tenant_waiting{model="m",replica="1",tenant="a"} 3.0' in text


def test_the_number_of_labels_is_bounded() -> None:
    metrics = TenantMetrics(most=2)
    metrics.text({SOURCE: [row("a", 1), row("b", 1)]})
    text = metrics.text({SOURCE: [row("c", 7), row("b", 2), row("d", 1)]}).decode()
    assert 'tenant="other"} 8.0' in text
    assert 'tenant="b"} 2.0' in text
    assert 'tenant="c"' not in text
