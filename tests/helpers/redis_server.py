"""A Redis server in a temporary folder, for tests.

with RedisServer() as server:
    RedisLimiter(server.url)
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import pytest
import redis

from helpers.ports import reserve_port

START_S = 60.0
MISSING = "no Redis server on this machine: install the Debian package redis-server"


class RedisServer:
    """Listens on loopback. Keeps nothing on disk, so a restart loses all data."""

    def __init__(self, password: str = "") -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip(MISSING)
        self._binary = binary
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-redis-"))
        self.port = reserve_port()
        self.password = password
        user = f":{quote(password, safe='')}@" if password else ""
        self.url = f"redis://{user}127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Waits until it answers. It may be stopped and started again: the port stays."""
        options = {
            "bind": "127.0.0.1", "port": self.port, "dir": self._folder, "save": "", "appendonly": "no",
            "requirepass": self.password, "logfile": self._folder / "log",
        }  # fmt: skip
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self.process = subprocess.Popen([self._binary, *arguments], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self.process.poll() is None, "Redis ended"
            assert time.monotonic() < deadline, "Redis has not started"
            time.sleep(0.01)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
