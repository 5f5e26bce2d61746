"""A helper process for work on untrusted input (schemas, chat templates): it may hang, crash or exhaust memory, and is
then killed.

`HelperProcess` is the parent's side: it sends questions and receives answers, one line each. `answer_questions` is the
child's side, and all that a child's module runs. The first line to the child is the greeting: data it needs before any
question. The child's first line is empty once it is ready; otherwise it is the answer to every question.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from penstock.errors import PenstockError, ShuttingDown
from penstock.settings import child_environment

PATIENCE = 10  # wall-clock time for an answer, in multiples of its CPU limit: a busy machine refuses nothing
START_LIMIT_S = 120.0
STACK_BYTES = 1 << 20  # less than the 8 MiB of an engine's main thread: what overflows a stack does so here first

Answer = Callable[[bytes], bytes]


class OutOfTime(Exception):
    """A question exceeded its CPU time."""


class Crashed(Exception):
    """A question killed the process."""


class HelperProcess:
    """Threads may share it; they take turns. The process starts with the first question, and again after it was killed
    or has died."""

    def __init__(self, module: str, greeting: bytes, *, cpu_limit_s: float, memory_bytes: int) -> None:
        """`memory_bytes`: on top of what the process uses once it is ready."""
        self._arguments = ["-m", module, str(cpu_limit_s), str(memory_bytes)]
        self._greeting = greeting
        self._patience_s = PATIENCE * cpu_limit_s
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False

    def ask(self, question: bytes) -> bytes:
        """Raises OutOfTime, Crashed, ShuttingDown once closed, or PenstockError if the process does not start."""
        with self._lock:
            fresh = False
            while not self._closed:
                if self._child is None:
                    fresh = True
                    self._child = _Child(self._arguments)
                    self._child.ask(self._greeting)
                    started = self._child.answer(START_LIMIT_S)
                    if started != b"":
                        self._dismiss()
                        if started is not None:
                            return started
                        raise PenstockError(f"the helper process ({self._arguments[1]}) did not start")
                self._child.ask(question)
                answer = self._child.answer(self._patience_s)
                if answer is not None:
                    return answer
                too_long = self._child.out_of_time
                self._dismiss()
                if too_long:
                    raise OutOfTime
                # A process that has answered before may have been killed from outside. Only if a fresh one dies is the
                # question taken for the cause.
                if fresh and not self._closed:
                    raise Crashed
            raise ShuttingDown("the helper process is closed")

    def close(self) -> None:
        self._closed = True
        if (child := self._child) is not None:
            child.kill()  # wakes a thread that waits for its answer
        with self._lock:
            self._dismiss()

    def _dismiss(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """The process, and a thread that reads its answers."""

    def __init__(self, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            process_group=0,  # out of reach of the terminal's Ctrl-C
        )
        self._lines: SimpleQueue[bytes] = SimpleQueue()  # b"": the process has ended
        self._reader = threading.Thread(target=self._read, name="helper process answers", daemon=True)
        self._reader.start()

    def ask(self, question: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: `answer` gives None
            self._process.stdin.write(question + b"\n")
            self._process.stdin.flush()

    def answer(self, limit_s: float) -> bytes | None:
        """None: no answer in time, or the process has died."""
        try:
            line = self._lines.get(timeout=limit_s)
        except Empty:
            return None
        return line[:-1] if line else None

    @property
    def out_of_time(self) -> bool:
        """After a missing answer: whether the process was still busy or hit its CPU limit, rather than crashed."""
        try:
            return -self._process.wait(timeout=1.0) == signal.SIGPROF
        except subprocess.TimeoutExpired:
            return True

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # input that it did not read
                if pipe is not None:
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")
        self._process.wait()  # reaped at once, also when it dies between two questions


# --- the child's side


def answer_questions(prepare: Callable[[bytes], Answer | bytes]) -> None:
    """`prepare` receives the greeting and returns the function that answers questions, or one answer to all of them.
    Returns when its input ends. Runs on a small stack (`STACK_BYTES`)."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the group: the parent handles them
        signal.signal(number, signal.SIG_IGN)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(prepare, float(sys.argv[1]), int(sys.argv[2])))
    thread.start()
    thread.join()


def _serve(prepare: Callable[[bytes], Answer | bytes], cpu_limit_s: float, memory_bytes: int) -> None:
    answer = prepare(sys.stdin.buffer.readline()[:-1])
    if isinstance(answer, bytes):
        _write(answer)
        return
    _write(b"")
    _limit_memory(memory_bytes)
    for line in sys.stdin.buffer:
        _set_alarm(cpu_limit_s)
        _write(answer(line[:-1]))
        _set_alarm(0.0)


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _set_alarm(cpu_s: float) -> None:
    """Let SIGPROF end this process after `cpu_s` more seconds of CPU time; 0 turns the alarm off."""
    if hasattr(signal, "setitimer"):  # not everywhere
        signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _limit_memory(more_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not everywhere
        return
    used = sum(int(line.split()[1]) << 10 for line in _status() if line.startswith("VmData:"))
    if used:
        resource.setrlimit(resource.RLIMIT_DATA, (used + more_bytes, used + more_bytes))


def _status() -> list[str]:
    path = Path("/proc/self/status")
    return path.read_text().splitlines() if path.exists() else []
