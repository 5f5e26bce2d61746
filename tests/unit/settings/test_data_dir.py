from __future__ import annotations

from pathlib import Path

from penstock.settings import Settings, load, to_wire
from penstock.settings.data_dir import data_folder


def test_the_folder_is_the_setting_or_the_users(tmp_path: Path) -> None:
    assert data_folder(str(tmp_path), {"XDG_DATA_HOME": "/xdg"}) == tmp_path
    assert data_folder(None, {"XDG_DATA_HOME": "/xdg"}) == Path("/xdg/penstock")
    for environ in ({}, {"XDG_DATA_HOME": "relative"}):
        assert data_folder(None, environ) == Path("~/.local/share/penstock").expanduser()


def test_the_database_is_in_the_folder_unless_named() -> None:
    assert load({"data_dir": "/data"}, environ={}).database_url == "sqlite:////data/tenants.db"
    url = "postgresql://penstock@db/penstock"
    assert load({"database": url}, environ={}).database_url == url


def test_no_database_is_needed_without_keys_and_ledger() -> None:
    assert not Settings().needs_database
    assert load({"ledger": True}, environ={}).needs_database


def test_keys_of_the_database_protect_a_server_as_those_of_the_settings_do() -> None:
    found = load({"keys": True, "host": "0.0.0.0", "admin_key": "boss"}, environ={})
    assert found.needs_key
    assert found.needs_database


def test_engines_do_not_get_the_addresses_of_databases() -> None:
    found = load({"keys": True, "database": "postgresql://u:s3cret@h/d", "redis": "redis://:s3cret@h"}, environ={})
    assert "s3cret" not in repr(to_wire(found))
