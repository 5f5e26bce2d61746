"""Migrations: revisions of the schema, which are applied in order when a database is opened."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, text

from penstock.errors import InvalidSetting

FOLDER = Path(__file__).parent / "migrations"
LOCK = 0x70656E73  # of PostgreSQL's advisory lock: any number that no other program uses


def migrate(connection: Connection) -> None:
    """Bring the schema up to date, in the transaction of `connection`: two programs that open a new database wait for
    each other. Raises InvalidSetting for a database of a newer version of Penstock."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise InvalidSetting(
            f"the database was written by another version of Penstock: {error}", param="database"
        ) from None
