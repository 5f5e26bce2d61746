"""A PostgreSQL server in a temporary folder, for tests.

with PostgresServer() as server:
    open_database(server.url("name"))
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.ports import reserve_port

START_S = 60.0
MISSING = "no PostgreSQL server on this machine: install the Debian package postgresql"


def find_binary(name: str) -> Path | None:
    """Debian keeps the server's programs out of the PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    return None if found is None else Path(found)


class PostgresServer:
    """Listens on loopback with trust authentication, as the user `penstock`. Its data does not survive a power
    failure, which makes it fast."""

    def __init__(self) -> None:
        postgres, initdb = find_binary("postgres"), find_binary("initdb")
        if postgres is None or initdb is None:
            pytest.skip(MISSING)
        self._postgres = postgres
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-postgresql-"))
        self._user = _unprivileged_user()
        if self._user is not None:
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        self.port = reserve_port()
        self._process: subprocess.Popen[bytes] | None = None
        options = ("--username", "penstock", "--auth", "trust", "--no-sync", "--no-locale", "--encoding", "UTF8")
        self._run(initdb, "--pgdata", self._folder / "data", *options)

    def start(self) -> None:
        """Waits until it answers. It may be stopped and started again: the port stays."""
        options = {
            "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off",
            "max_connections": 100, "shared_buffers": "16MB",
        }  # fmt: skip
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._postgres), "-D", str(self._folder / "data"), *settings],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            log_text = (self._folder / "log").read_text(errors="replace")
            assert self._process.poll() is None, f"PostgreSQL ended:\n{log_text}"
            assert time.monotonic() < deadline, f"PostgreSQL has not started:\n{log_text}"
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends all connections at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def url(self, database: str) -> str:
        """Of a database of this name, which is created if need be."""
        import psycopg

        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,)).fetchone() is None:
                connection.execute(f'CREATE DATABASE "{database}"')
        return self._address(database)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _address(self, database: str) -> str:
        return f"postgresql://penstock@127.0.0.1:{self.port}/{database}"

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self._address("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [str(part) for part in command], user=self._user, cwd=self._folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for all tests of a run: give each test a database of its own."""
    with PostgresServer() as server:
        yield server


def _unprivileged_user() -> str | None:
    """PostgreSQL does not run as root; None: this process does not, either."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
