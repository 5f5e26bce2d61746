"""SQLite databases through SQLAlchemy: durable, with one writer and any number of readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, event, exc

from penstock.errors import InvalidSetting

# WAL: readers do not wait for the writer. FULL: a committed transaction survives a power failure, too.
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000")

_versions = Table("schema_versions", MetaData(), Column("name", String, primary_key=True), Column("version", Integer))


def create_file(path: Path) -> None:
    """If it does not exist. Only its owner may read it; SQLite's other files get the same mode."""
    path.touch(mode=0o600)


def open_file(path: Path) -> Engine:
    """The database in this file, which is created if need be. Every connection has the pragmas."""
    create_file(path)
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _: Any) -> None:
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    return engine


def create_schema(
    engine: Engine, name: str, tables: MetaData, version: int, upgrades: Mapping[int, str] | None = None
) -> None:
    """Creates the tables of the schema `name` where they do not exist. `upgrades` has for older versions the statement
    that leads to the next. Raises InvalidSetting if the file is no database, or if a newer version of Penstock has
    written it."""
    try:
        with engine.begin() as connection:
            _versions.metadata.create_all(connection)
            found = connection.execute(sqlalchemy.select(_versions.c.version).where(_versions.c.name == name)).scalar()
            if found is None:
                tables.create_all(connection)
                connection.execute(_versions.insert().values(name=name, version=version))
            while found is not None and found in (upgrades or {}):
                connection.execute(sqlalchemy.text((upgrades or {})[found]))
                found += 1
                connection.execute(_versions.update().where(_versions.c.name == name).values(version=found))
    except exc.DatabaseError as error:
        raise InvalidSetting(f"cannot use the database {engine.url.database}: {error.orig}", param="data_dir") from None
    if found not in (None, version):
        raise InvalidSetting(
            f"the database {engine.url.database} has version {found} of the {name} tables, and this version of "
            f"Penstock has {version}: use another data_dir",
            param="data_dir",
        )
