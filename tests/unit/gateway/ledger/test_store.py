"""Usage records in a database."""

from __future__ import annotations

from pathlib import Path
from sqlite3 import IntegrityError

import pytest

from helpers.usage_records import NOON, record, usage_database
from penstock.errors import StorageUnavailable
from penstock.gateway.ledger.queries import UsageQuery, to_csv, total
from penstock.gateway.ledger.store import UsageStore
from penstock.gateway.limits.account import Account
from penstock.gateway.limits.limiter import Settlement, Spend

DAY = 86400.0


def test_a_record_is_there_once(tmp_path: Path) -> None:
    store = UsageStore(usage_database(tmp_path))
    store.add([record("a"), record("b")])
    store.add([record("b", output=99), record("c")])  # as after a commit whose outcome was not known
    (found,) = store.sums(UsageQuery())
    assert (found.requests, found.output) == (3, 15)
    store.close()


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    store = UsageStore(usage_database(tmp_path))
    with pytest.raises(IntegrityError):
        store.add([record("a"), record("b", input=None)])
    store.add([record("c")])
    (found,) = store.sums(UsageQuery())
    assert found.requests == 1
    store.close()


def test_sums_by_tenant_key_model_and_day(tmp_path: Path) -> None:
    store = UsageStore(usage_database(tmp_path))
    store.add([
        record("a"), record("b", key="k2", microusd=3), record("c", t=NOON + DAY), record("d", tenant="beta", key="k9"),
        record("e", model="big", microusd=100, input=1, cached=0, output=1, saved_microusd=0),
    ])  # fmt: skip
    by_day = store.sums(UsageQuery(group_by=("day", "tenant")))
    assert [(one.groups, one.requests, one.microusd) for one in by_day] == [
        ({"day": "2026-11-12", "tenant": "acme"}, 3, 110),
        ({"day": "2026-11-12", "tenant": "beta"}, 1, 7),
        ({"day": "2026-11-13", "tenant": "acme"}, 1, 7),
    ]
    of_beta = store.sums(UsageQuery(group_by=("key", "model"), only={"tenant": "beta"}))
    assert [one.groups for one in of_beta] == [{"key": "k9", "model": "m"}]
    late = store.sums(UsageQuery(since=NOON + 1, group_by=("model",)))
    assert [(one.groups, one.requests) for one in late] == [({"model": "m"}, 1)]
    early = store.sums(UsageQuery(until=NOON + 1, group_by=("model",)))
    assert [one.requests for one in early] == [1, 3]
    assert total(by_day).row() == {
        "requests": 5, "input_tokens": 41, "cached_tokens": 16, "output_tokens": 21, "drafted_tokens": 0,
        "cost_usd": 0.000124, "cache_savings_usd": 0.000008, "request_seconds": 2.5,
    }  # fmt: skip
    assert store.sums(UsageQuery(since=NOON + 9 * DAY)) == []
    store.close()


def test_what_limits_restore_after_a_start(tmp_path: Path) -> None:
    store = UsageStore(usage_database(tmp_path))
    store.add([
        record("before", t=NOON - 20 * DAY), record("month", t=NOON - 3 * DAY), record("a"),
        record("b", key="k2", t=NOON + 5), record("free", key="", tenant="", microusd=0),
    ])  # fmt: skip
    assert store.settled_since(NOON + 1) == [Settlement(NOON + 5, "acme", "k2", 15)]
    assert sorted(store.spend(NOON + 60)) == [
        Spend("", "", 0, 0), Spend("acme", "", 14, 21), Spend("acme", "k1", 7, 14), Spend("acme", "k2", 7, 7),
    ]  # fmt: skip
    assert store.spend(NOON + 60, Account("acme")) == [Spend("acme", "", 14, 21)]
    assert store.spend(NOON + 60, Account("acme", "k2")) == [Spend("acme", "k2", 7, 7)]
    assert store.settled_since(NOON, Account("acme", "k1")) == [Settlement(NOON, "acme", "k1", 15)]
    assert store.spend_by_minute(NOON) == [(int(NOON // 60), "acme", 14)]
    store.close()


def test_csv() -> None:
    rows = [{"tenant": "=cmd()", **total([]).row(), "cost_usd": 0.000001}]
    assert to_csv(rows, ["tenant"]).splitlines() == [
        "tenant,requests,input_tokens,cached_tokens,output_tokens,drafted_tokens,cost_usd,cache_savings_usd,"
        "request_seconds",
        "'=cmd(),0,0,0,0,0,0.000001,0.000000,0",
    ]
    assert to_csv([], ["model", "day"]).startswith("day,model,requests,")


def test_a_full_database_is_not_available_until_there_is_room(tmp_path: Path) -> None:
    """It can be read all the same."""
    database = usage_database(tmp_path)
    store = UsageStore(database)
    store.add([record(f"first-{number}") for number in range(100)])
    store.close()

    def limit(pages: int) -> None:
        with database.read() as connection:  # the pool's only connection in this thread
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    limit(1)  # no more than there are
    with pytest.raises(StorageUnavailable):
        store.check()
    limit(1 << 20)
    store.check()
    (found,) = store.sums(UsageQuery())
    assert found.requests == 100
    store.close()
