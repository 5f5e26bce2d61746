from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from helpers.postgresql import PostgresServer
from penstock.database.database import Database, open_database, parse_url
from penstock.errors import InvalidSetting, StorageUnavailable


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def test_a_file_is_created_for_its_owner_alone_with_all_tables(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "%tenants.db"
    for _ in range(2):
        database = open_database(url_of(path))
        with database.read() as connection:
            assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
            assert connection.scalar(text("SELECT number FROM key_changes")) == 0
        database.close()
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "url", ["tenants.db", "sqlite://", "mysql://u:s3cret@h/d", "sqlite:///a?uri=true", "://s3cret"]
)
def test_other_urls_are_rejected_without_showing_them(url: str) -> None:
    with pytest.raises(InvalidSetting, match="database must be a URL") as error:
        parse_url(url)
    assert error.value.param == "database"
    assert "s3cret" not in error.value.message


def test_postgresql_has_two_names() -> None:
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        assert parse_url(f"{scheme}://u:p@h/d").drivername == "postgresql+psycopg"


def test_a_server_that_does_not_answer_is_unavailable_and_its_password_is_not_shown() -> None:
    with pytest.raises(StorageUnavailable) as error:
        open_database("postgresql://u:s3cret@127.0.0.1:1/d")
    assert "s3cret" not in error.value.message
    assert "127.0.0.1" in error.value.message


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_text("something else entirely, and long enough to be looked at" * 20)
    with pytest.raises(StorageUnavailable, match="not a database"):
        open_database(url_of(path))


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path / "a.db"))
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    database.close()
    with pytest.raises(InvalidSetting, match="another version of Penstock"):
        open_database(url_of(tmp_path / "a.db"))


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path / "a.db"))
    with contextlib.suppress(RuntimeError), database.write() as connection:
        connection.execute(text("UPDATE key_changes SET number = 5"))
        raise RuntimeError
    assert _number(database) == 0
    database.close()


def test_programs_that_open_a_new_database_at_once_all_get_its_tables(tmp_path: Path) -> None:
    _open_at_once(url_of(tmp_path / "a.db"))


def test_writers_that_read_first_do_not_lose_updates(tmp_path: Path) -> None:
    _count_at_once(open_database(url_of(tmp_path / "a.db")))


@pytest.mark.databases
def test_the_same_over_postgresql(postgres_server: PostgresServer) -> None:
    _open_at_once(postgres_server.url("opened"))
    database = open_database(postgres_server.url("opened"))
    assert database.kind == "postgresql"
    postgres_server.stop()
    with pytest.raises(StorageUnavailable):
        _number(database)
    postgres_server.start()
    assert _number(database) == 0
    database.close()


@pytest.mark.databases
def test_migrations_make_the_tables_that_the_code_has(postgres_server: PostgresServer, tmp_path: Path) -> None:
    from penstock.batch import shared_tables
    from penstock.batch import tables as batch
    from penstock.gateway.keys import tables as keys
    from penstock.gateway.ledger import tables as ledger
    from penstock.http import response_tables

    for url in (url_of(tmp_path / "a.db"), postgres_server.url("compared")):
        database = open_database(url)
        for metadata in (module.metadata for module in (keys, ledger, response_tables, batch, shared_tables)):
            with database.read() as connection:
                context = MigrationContext.configure(connection, opts={"include_object": _known(metadata)})
                assert compare_metadata(context, metadata) == []
        database.close()


def _known(metadata: object) -> object:
    tables = metadata.tables  # type: ignore[attr-defined]
    return lambda item, name, kind, *_: kind != "table" or name in tables


def _number(database: Database) -> int:
    with database.read() as connection:
        return int(connection.scalar(text("SELECT number FROM key_changes")) or 0)


def _open_at_once(url: str) -> None:
    failures: list[BaseException] = []

    def open_and_read() -> None:
        try:
            database = open_database(url)
            _number(database)
            database.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_and_read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def _count_at_once(database: Database) -> None:
    def count() -> None:
        for _ in range(10):
            with database.write() as connection:
                number = connection.scalar(text("SELECT number FROM key_changes"))
                connection.execute(text("UPDATE key_changes SET number = :number"), {"number": (number or 0) + 1})

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _number(database) == 40
    database.close()
