from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, text

from penstock.database.sqlite import create_schema, open_file
from penstock.errors import InvalidSetting

TABLES = MetaData()
Table("things", TABLES, Column("id", Integer, primary_key=True))


def test_the_schema_is_made_once(tmp_path: Path) -> None:
    for _ in range(2):
        engine = open_file(tmp_path / "a.db")
        create_schema(engine, "things", TABLES, 1)
        with engine.begin() as connection:
            connection.execute(text("insert into things default values"))
            assert connection.scalar(text("pragma journal_mode")) == "wal"
            count = connection.scalar(text("select count(*) from things"))
        engine.dispose()
    assert count == 2
    assert (tmp_path / "a.db").stat().st_mode & 0o077 == 0


def test_schemas_stand_beside_each_other(tmp_path: Path) -> None:
    engine, others = open_file(tmp_path / "a.db"), MetaData()
    Table("others", others, Column("id", Integer, primary_key=True))
    create_schema(engine, "things", TABLES, 1)
    create_schema(engine, "others", others, 7)
    create_schema(engine, "things", TABLES, 1)
    engine.dispose()


def test_another_version_is_rejected(tmp_path: Path) -> None:
    engine = open_file(tmp_path / "a.db")
    create_schema(engine, "things", TABLES, 2)
    with pytest.raises(InvalidSetting, match="version 2 of the things tables, and this version of Penstock has 1"):
        create_schema(engine, "things", TABLES, 1)
    engine.dispose()


def test_a_file_that_is_no_database_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("something else entirely, and long enough to be looked at" * 20)
    engine = open_file(tmp_path / "a.db")
    with pytest.raises(InvalidSetting, match="cannot use the database"):
        create_schema(engine, "things", TABLES, 1)
    engine.dispose()


def test_an_older_version_is_upgraded(tmp_path: Path) -> None:
    engine = open_file(tmp_path / "a.db")
    create_schema(engine, "things", TABLES, 1)
    upgrades = {1: "ALTER TABLE things ADD COLUMN size INTEGER", 2: "ALTER TABLE things ADD COLUMN name VARCHAR"}
    for _ in range(2):
        create_schema(engine, "things", TABLES, 3, upgrades)
        with engine.begin() as connection:
            connection.execute(text("insert into things (size, name) values (1, 'a')"))
    engine.dispose()
