"""A setting that has no effect without another one is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidSetting
from penstock.settings import load, parse_entry
from penstock.settings.unused import check_used_by_server

AUDIT = "speculate_audit: there are no drafts to audit"


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"speculate_audit": 0.1}, "speculate_audit"),
        ({"speculate_audit": 0.1, "speculate": "off"}, "speculate_audit"),
        ({"ttft_targets_s": "1,2"}, "ttft_targets_s"),
        ({"ageing_s": 30.0, "policy": "fcfs"}, "ageing_s"),
        ({"events": False, "keep_texts": True}, "keep_texts"),
        ({"events": False, "otel_endpoint": "http://127.0.0.1:4318/v1/traces"}, "otel_endpoint"),
        ({"events": False, "slo_kv_use": 0.9}, "slo_kv_use"),
        ({"slo_webhook": "http://127.0.0.1:9/", "slo_window_s": 60}, "slo_webhook"),
        ({"limits_unavailable": "open"}, "limits_unavailable"),
        ({"revoked_streams": "finish", "ledger": True}, "revoked_streams"),
    ],
)
def test_a_setting_without_effect_is_named(arguments: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_used_by_server(load(arguments, environ={}))
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize("name", ["limits_unavailable", "revoked_streams", "keep_texts"])
def test_other_commands_take_the_settings_of_a_server(name: str) -> None:
    """`penstock keys` reads the same file, and the server's flags may be elsewhere."""
    given = {"limits_unavailable": "open", "revoked_streams": "finish", "keep_texts": True}[name]
    load({name: given, "events": False}, environ={})


@pytest.mark.parametrize(
    "arguments",
    [
        {"speculate_audit": 0.1, "speculate": "lookup"},
        {"speculate_audit": 0.0, "speculate": "off"},
        {"ttft_targets_s": "1,2", "policy": "deadline"},
        {"ageing_s": 30.0},
        {"ageing_s": 30.0, "policy": "priority"},
        {"events": False},
        {"keep_texts": True},
        {"slo_webhook": "http://127.0.0.1:9/", "slo_kv_use": 0.9},
        {"limits_unavailable": "open", "ledger": True},
        {"revoked_streams": "finish", "keys": True},
        {"events": False, "slo_ttft_p95": 1.0},  # what autoscaling aims at
        {"ttft_targets_s": "1, 5, 60"},  # the default
    ],
)
def test_what_another_setting_makes_use_of_is_allowed(arguments: dict[str, object]) -> None:
    check_used_by_server(load(arguments, environ={}))


def test_the_environment_is_named() -> None:
    with pytest.raises(InvalidSetting, match=f"{AUDIT}.*PENSTOCK_SPECULATE_AUDIT in the environment"):
        load(environ={"PENSTOCK_SPECULATE_AUDIT": "0.5"})


def read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    load({}, environ={}, file=path)


ENTRIES = """
[[models]]
name = "a"
model = "smollm2"
{a}
[[models]]
name = "b"
model = "smollm2"
{b}
"""


def test_one_model_of_several_makes_use_of_a_shared_setting(tmp_path: Path) -> None:
    shared = "[engine]\nspeculate_audit = 0.1\n"
    read(tmp_path, shared + ENTRIES.format(a='speculate = "lookup"', b='speculate = "off"'))
    with pytest.raises(InvalidSetting, match=f"^{AUDIT}"):
        read(tmp_path, shared + ENTRIES.format(a="", b='speculate = "off"'))


def test_an_entry_makes_use_of_its_own_setting(tmp_path: Path) -> None:
    read(tmp_path, ENTRIES.format(a='speculate_audit = 0.1\nspeculate = "lookup"', b=""))
    with pytest.raises(InvalidSetting, match=rf"^models\[1\] \(b\): {AUDIT}") as caught:
        read(tmp_path, ENTRIES.format(a='speculate = "lookup"', b="speculate_audit = 0.1"))
    assert caught.value.param == "speculate_audit"


def test_an_entry_that_is_added_at_run_time_makes_use_of_its_own_setting() -> None:
    settings = load({"speculate": "lookup", "speculate_audit": 0.1}, environ={})
    parse_entry({"name": "new", "model": "smollm2", "speculate": "off"}, settings)  # the shared audit is not its own
    with pytest.raises(InvalidSetting, match=AUDIT):
        parse_entry({"name": "new", "model": "smollm2", "speculate": "off", "speculate_audit": 0.2}, settings)


def test_a_pinned_model_has_no_keep_alive(tmp_path: Path) -> None:
    read(tmp_path, ENTRIES.format(a='pinned = true\nkeep_alive = "-1"', b='keep_alive = "5m"'))
    with pytest.raises(InvalidSetting, match=r"^models\[0\] \(a\): keep_alive unloads an idle model"):
        read(tmp_path, ENTRIES.format(a='pinned = true\nkeep_alive = "5m"', b=""))


def test_a_server_makes_use_of_its_database() -> None:
    url = "sqlite:////nowhere/tenants.db"
    check_used_by_server(load({"database": url, "ledger": True}, environ={}))
    check_used_by_server(load({"database": "postgresql://penstock@db.example/penstock"}, environ={}))
    with pytest.raises(InvalidSetting, match=r"^database: "):
        check_used_by_server(load({"database": url}, environ={}))  # no error of `load`: `penstock keys` takes it, too
