"""`penstock serve` as people start it: a process, its URL, its log, the engine behind it.

with Server(folder, "--max-waiting", "1") as server:
    httpx.get(f"{server.url}/health")
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.observe.metrics import SOURCE_LABELS

T = TypeVar("T")

PATIENCE_S = 120.0  # each takes about a second on an idle machine
KEPT = {"PENSTOCK_CACHE"}  # the only PENSTOCK_ variable that a server inherits


def until(found: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Poll `found` and return its first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what}: has not happened within {timeout_s} s"
        time.sleep(0.01)
    return value


def command(*arguments: object) -> list[str]:
    return [str(Path(sys.executable).with_name("penstock")), "serve", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") or name in KEPT}
    return {**kept, "PENSTOCK_THREADS": "1", "PENSTOCK_DEVICE": "cpu", **more}


def alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended without anybody having taken notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class Server:
    ANNOUNCED = r"docs +(http://\S+)/docs|ready: (http://[^\s\"]+)"  # once the model is loaded

    def __init__(self, model: object, *options: object, **env: str) -> None:
        """Starts it and waits for it; settings in `env` are without their prefix."""
        self.model = Path(str(model)).name
        self.log_file = tempfile.TemporaryFile()  # noqa: SIM115
        self.data_folder = tempfile.TemporaryDirectory()  # never the files and batches of whoever runs the tests
        settings = {"data_dir": self.data_folder.name, **env}
        self.process = subprocess.Popen(
            command(model, "--port", 0, *options),
            stderr=self.log_file,
            start_new_session=True,  # a group of its own, for signals to all of it
            env=environment(**{f"PENSTOCK_{name.upper()}": value for name, value in settings.items()}),
        )
        try:
            self.url = until(self._announced, "start-up")
        except BaseException:
            self.close()
            raise
        self.api = f"{self.url}/v1"

    def _announced(self) -> str | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log}")
        found = re.search(self.ANNOUNCED, self.log)
        return found and next(filter(None, found.groups()))

    @property
    def log(self) -> str:
        return os.pread(self.log_file.fileno(), 1 << 24, 0).decode()

    def engines(self) -> list[int]:
        """Process ids of the engines of this server that are there now; normally one."""
        return [pid for pid in self.children() if b"penstock.engine.worker" in _command_line(pid)]

    def frontends(self) -> list[int]:
        """Process ids of further frontends that are there now; none, unless it has several."""
        return [pid for pid in self.children() if b"penstock.frontends.worker" in _command_line(pid)]

    def children(self) -> list[int]:
        """Of its processes: the engine, and the one that compiles grammars once there are any."""
        pids: list[int] = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # that thread has just ended
                pids += map(int, task.read_text().split())
        return list(filter(alive, pids))

    def kill_engine(self) -> None:
        (pid,) = self.engines()
        os.kill(pid, signal.SIGKILL)

    def resident_bytes(self) -> int:
        """Of the frontend."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def metrics(self) -> dict[str, float]:
        """By name, with the labels but those of its source: `penstock_kv_blocks{group=0,state=held}`."""
        text = httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text
        values = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(
                    f"{name}={value}" for name, value in sorted(sample.labels.items()) if name not in SOURCE_LABELS
                )
                values[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
        return values

    def metric(self, name: str) -> float:
        return self.metrics()[f"penstock_{name}"]

    def idle(self) -> bool:
        """No sequence runs or waits, and no block is held."""
        values = self.metrics()
        held = [value for name, value in values.items() if name.startswith("penstock_kv_blocks") and "held" in name]
        if not held:  # the engine is too busy to answer
            return False
        counts = ("open_requests", "num_requests_running", "num_requests_waiting")
        return not any([*held, *(values[f"penstock_{name}"] for name in counts)])

    def status(self, path: str) -> int:
        return httpx.get(self.url + path, timeout=PATIENCE_S).status_code

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._options(options))

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._options(options))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"base_url": self.api, "api_key": "none", "max_retries": 0, "timeout": PATIENCE_S, **options}

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Whatever state it is in: it and its engines are gone afterwards."""
        children = self.children()
        self.process.kill()
        self.process.wait()
        try:
            until(lambda: not any(map(alive, children)), "the end of the processes behind their server")
        finally:
            for pid in filter(alive, children):
                os.kill(pid, signal.SIGKILL)
            self.log_file.close()
            self.data_folder.cleanup()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GatedServer(Server):
    """A server whose next engine process waits, from `hold_engines` to `let_start`."""

    WAIT = """
import os, sys, time
while "penstock.engine.worker" in sys.orig_argv and not os.path.exists({gate!r}):
    time.sleep(0.005)
"""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, model: object, *options: object, held: bool = False
    ) -> None:
        """`folder` is for files of its own; `held`: the first engine waits, too."""
        self.gate = folder / "gate"
        if not held:
            self.gate.touch()
        (folder / "sitecustomize.py").write_text(self.WAIT.format(gate=str(self.gate)))
        paths = (str(folder), *filter(None, [os.environ.get("PYTHONPATH")]))
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", os.pathsep.join(paths))
            super().__init__(model, *options)

    def hold_engines(self) -> None:
        self.gate.unlink()

    def let_start(self) -> None:
        self.gate.touch()
        until(lambda: self.status("/ready") == 200, "start-up")

    def close(self) -> None:
        self.gate.touch()  # an engine that waits here does not look whether its server is still there
        super().close()


class StartingServer(GatedServer):
    """A server that listens, and whose engine process waits for `let_start`."""

    ANNOUNCED = r"listening on (http://[^\s;]+);"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, model: object, *options: object) -> None:
        super().__init__(monkeypatch, folder, model, *options, held=True)
