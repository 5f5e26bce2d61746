from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.key_stores import Clock, load_keys, open_store
from penstock.cli import penstock
from penstock.errors import KeyRevoked, PenstockError


@pytest.fixture(autouse=True)
def _data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))


def run(*arguments: str) -> str:
    """The standard output. Raises what the command does."""
    done = CliRunner().invoke(penstock, arguments, catch_exceptions=False, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def created(*arguments: str) -> str:
    return run("keys", "create", "--tenant", "acme", *arguments).strip()


def shown(key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("keys", "show", key.split("-")[2], "--json"))
    return found


def test_a_key_is_printed_alone_and_only_once(tmp_path: Path) -> None:
    key = created("--name", "ci")
    with open_store(tmp_path) as store:
        identity = load_keys(store, Clock()).identify(key.encode())
    assert identity is not None
    assert (identity.tenant, identity.scopes) == ("acme", {"inference"})
    for command in (("list",), ("show", identity.key), ("audit",), ("list", "--json"), ("audit", "--json")):
        output = run("keys", *command)
        assert identity.key in output
        assert key.split("-")[3] not in output


def test_all_that_can_be_set() -> None:
    key = created(
        "--scope", "admin", "--scope", "observe", "--model", "a", "--model", "b", "--tier", "bulk",
        "--requests-per-minute", "1", "--tokens-per-minute", "2", "--concurrent-requests", "3", "--usd-per-day", "0.5",
        "--usd-per-month", "6", "--default-max-tokens", "7", "--max-tokens", "8", "--expires", "2100-01-31",
    )  # fmt: skip
    found = shown(key)
    expected = {
        "scopes": ["admin", "observe"], "models": ["a", "b"], "tier": "bulk", "requests_per_minute": 1,
        "tokens_per_minute": 2, "concurrent_requests": 3, "usd_per_day": 0.5, "usd_per_month": 6.0,
        "default_max_tokens": 7, "max_tokens": 8, "expires_at": 4105036800, "state": "active",
    }  # fmt: skip
    assert found | expected == found
    run(
        "keys",
        "update",
        found["id"],
        "--usd-per-day",
        "none",
        "--model",
        "none",
        "--expires",
        "none",
        "--tier",
        "standard",
    )
    changed = {"usd_per_day": None, "models": None, "expires_at": None, "tier": "standard"}
    assert shown(key) == found | changed


def test_a_duration_counts_from_now() -> None:
    before = int(time.time())
    assert before + 30 * 86400 <= shown(created("--expires", "30d"))["expires_at"] <= time.time() + 30 * 86400


def test_rotation_and_revocation(tmp_path: Path) -> None:
    old = created()
    new = run("keys", "rotate", old.split("-")[2], "--grace", "1h").strip()
    now = Clock(time.time())
    with open_store(tmp_path, now) as store:
        assert load_keys(store, now).identify(old.encode()) == load_keys(store, now).identify(new.encode()) is not None
        assert "is revoked" in run("keys", "revoke", old.split("-")[2])
        with pytest.raises(KeyRevoked):
            load_keys(store, now).identify(new.encode())
    assert shown(new)["state"] == "revoked"


def test_long_lists_are_read_in_parts() -> None:
    ids = sorted([created("--name", "[b] one").split("-")[2] for _ in range(3)])
    first = CliRunner().invoke(penstock, ["keys", "list", "--limit", "2", "--json"], standalone_mode=False)
    listed = [one["id"] for one in json.loads(first.stdout)]
    assert first.stderr == f"there are more: --after {listed[-1]}\n"
    rest = json.loads(run("keys", "list", "--after", listed[-1], "--json"))
    assert sorted([*listed, *(one["id"] for one in rest)]) == ids
    assert run("keys", "list", "--search", ids[0]).count("[b] one") == 1
    assert run("keys", "list", "--state", "revoked").count("[b] one") == 0
    with pytest.raises(PenstockError, match="after names no key"):
        run("keys", "list", "--after", "nobody")


def test_tenants_are_set_and_listed() -> None:
    run("tenants", "set", "acme", "--weight", "2", "--tokens-per-minute", "100")
    run("tenants", "set", "acme", "--usd-per-month", "7.5", "--tokens-per-minute", "none")
    assert run("tenants", "list") == "acme  usd_per_month=7.5  weight=2\n"
    (found,) = json.loads(run("tenants", "list", "--json"))
    assert (found["name"], found["weight"], found["usd_per_month"]) == ("acme", 2.0, 7.5)


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "nobody"),
        ("revoke", "' OR 1=1"),
        ("create", "--tenant", "a b"),
        ("create", "--tenant", "a", "--tier", "gold"),
        ("create", "--tenant", "a", "--expires", "2001-01-01"),
        ("list", "--database", "mysql://db/x"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...]) -> None:
    with pytest.raises(PenstockError):
        run("keys", *arguments)
