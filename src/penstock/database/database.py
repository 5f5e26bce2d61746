"""A database by its URL: a SQLite file, or PostgreSQL. Calls block, so servers make them in threads."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event, exc

from penstock.database.migrate import migrate
from penstock.database.sqlite import PRAGMAS, create_file
from penstock.errors import InvalidSetting, PenstockError, StorageFull, StorageUnavailable

logger = logging.getLogger(__name__)

LOG_S = 10.0  # between two log lines about failures: servers poll
SQLITE, POSTGRESQL = "sqlite", "postgresql"
DISK_FULL = "53100"  # PostgreSQL's code
WRITES = "penstock_writes"  # execution option of a connection
# A server that does not answer is given up: nothing waits for it without end.
_POSTGRESQL_ARGUMENTS = {
    "connect_timeout": 5,  # seconds
    "tcp_user_timeout": 10_000,  # milliseconds
    "options": "-c statement_timeout=10000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=30000",
    "application_name": "penstock",
}


class Database:
    """Transactions on one database, from any thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kind = engine.dialect.name
        self._logged = -LOG_S  # when a failure was last logged

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that writes nothing. Raises StorageUnavailable."""
        with self._unavailable_errors(), self.engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed at the end. SQLite has one writer at a time: it waits for the others here,
        before it has read anything. Raises StorageUnavailable, and StorageFull."""
        with self._unavailable_errors(), self.write_connection() as connection:
            yield connection

    @contextlib.contextmanager
    def write_connection(self) -> Iterator[Connection]:
        """As `write`, with SQLAlchemy's own errors."""
        with self.engine.connect() as connection:
            connection.execution_options(**{WRITES: True})
            with connection.begin():
                yield connection

    def close(self) -> None:
        self.engine.dispose()

    @contextlib.contextmanager
    def _unavailable_errors(self) -> Iterator[None]:
        """The client is not told the address and the reason; the log is."""
        try:
            yield
        except exc.IntegrityError:
            raise
        except (exc.DBAPIError, exc.TimeoutError) as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) == DISK_FULL:
                raise StorageFull("the database has no room: delete what is not needed, or store less") from None
            if time.monotonic() - self._logged >= LOG_S:
                self._logged = time.monotonic()
                logger.error("the database failed: %s", getattr(error, "orig", error))
            raise StorageUnavailable("the database is not available; the server's log says why") from None


def open_database(url: str) -> Database:
    """With all tables, which are created or migrated if need be. Raises InvalidSetting for a URL or a database that
    cannot be used, StorageUnavailable if PostgreSQL does not answer."""
    parsed = parse_url(url)
    database = Database(_sqlite(parsed) if parsed.get_backend_name() == SQLITE else _postgresql(parsed))
    try:
        with database.write_connection() as connection:
            migrate(connection)
    except (exc.DBAPIError, PenstockError) as error:
        database.close()
        if isinstance(error, PenstockError):
            raise
        shown = parsed.render_as_string(hide_password=True)
        raise StorageUnavailable(f"cannot use the database {shown}: {error.orig}", param="database") from None
    return database


def parse_url(url: str) -> URL:
    """Raises InvalidSetting. The URL may hold a password: errors do not show it."""
    try:
        parsed = sqlalchemy.make_url(url)
        kind = parsed.get_backend_name()
    except (exc.ArgumentError, ValueError):
        kind = ""
    if kind == "postgres":
        parsed, kind = parsed.set(drivername=POSTGRESQL), POSTGRESQL
    if kind == POSTGRESQL:
        return parsed.set(drivername="postgresql+psycopg")
    if kind == SQLITE and parsed.database and not parsed.query and not parsed.host:
        return parsed
    raise InvalidSetting(
        "database must be a URL such as sqlite:////var/lib/penstock/tenants.db or "
        "postgresql://penstock@db.example/penstock",
        param="database",
    )


def _sqlite(url: URL) -> Engine:
    path = Path(url.database or "").expanduser()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_file(path)
    except OSError as error:
        raise InvalidSetting(f"cannot use the database {path}: {error.strerror}", param="database") from None
    engine = sqlalchemy.create_engine(URL.create(SQLITE, database=str(path)))

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin below, also those of schema changes
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that has read cannot become a writer once another one has written.
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: URL) -> Engine:
    try:
        return sqlalchemy.create_engine(url, connect_args=_POSTGRESQL_ARGUMENTS, pool_pre_ping=True)
    except ModuleNotFoundError:
        raise InvalidSetting(
            "PostgreSQL needs another package: pip install 'penstock[postgres]'", param="database"
        ) from None
