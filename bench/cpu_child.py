"""Engines of bench/cpu.py as processes: each loads one model and then executes commands, one line of JSON each,
so that engines take turns without reloading their models.

    PYTHON bench/cpu_penstock.py MODEL.gguf THREADS          and openvino_peer.py, cpu_transformers.py alike

`prefill` and `decode` are tokens per second. A waiting process uses no CPU time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Engine(Protocol):
    """The commands of a child, by method name."""

    def first_token(self) -> float:
        """Seconds for 16 tokens in, one out."""
        ...

    def prefill(self, tokens: int) -> float:
        """Of one prompt after the first."""
        ...

    def decode(self, prompt: int, streams: int, output: int) -> float:
        """Of all streams together, after all prefills."""
        ...


def serve(start: Callable[[Path, int], object]) -> None:
    """The main function of a child."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    engine = start(Path(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        order = json.loads(line)
        figure = getattr(engine, order.pop("do"))(**order)
        print(json.dumps(figure), file=answers, flush=True)


class Failed(Exception):
    pass


class Child:
    """An engine in its own process. `start_s` is None after the first call."""

    def __init__(self, script: str, model: Path, threads: int, python: str = sys.executable) -> None:
        self._arguments = (script, model, threads, python)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._started: float | None = time.perf_counter()
        command = [python, str(Path(__file__).parent / script), str(model), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def start_s(self) -> float | None:
        """Process start to first token."""
        if self._started is None:
            return None
        self.ask("first_token")
        seconds, self._started = time.perf_counter() - self._started, None
        return seconds

    def prefill(self, tokens: int) -> float:
        return self.ask("prefill", tokens=tokens)

    def decode(self, prompt: int, streams: int, output: int) -> float:
        return self.ask("decode", prompt=prompt, streams=streams, output=output)

    def peak_mb(self) -> float:
        """Peak resident memory with one stream, of a process that has done nothing else, as llama.cpp's tools."""
        alone = Child(*self._arguments)
        try:
            alone.decode(512, 1, 16)
            status = Path(f"/proc/{alone._process.pid}/status").read_text().splitlines()
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
        finally:
            alone.close()

    def cpu_s(self) -> float:
        """CPU time so far, of all threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, what: str, **order: Any) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"do": what, **order}), file=self._process.stdin, flush=True)
        if not (answer := self._process.stdout.readline()):
            self._errors.seek(0)
            raise Failed(self._errors.read()[-2000:])
        return float(json.loads(answer))


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
