"""A helper process that may be killed, for work on what strangers sent: it may hang, crash or take all memory.

`Helper` is the parent's side: it asks questions and gets answers, each a line. `answer_questions` is the child's side,
and the whole of what its module does when it is run. The first line that a child reads is its greeting: what it needs
to know before all questions. The first line it says is empty once it is ready; else it is the answer to all of them.
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

PATIENCE = 10  # times the limit of CPU time is waited for an answer, so that a busy machine refuses nothing
START_LIMIT_S = 120.0
STACK_BYTES = 1 << 20  # a fraction of what an engine has: its main thread has 8 MiB

Answer = Callable[[bytes], bytes]


class OutOfTime(Exception):
    """A question took more CPU time than it may."""


class Crashed(Exception):
    """The process has died of a question."""


class Helper:
    """Threads may share it; they take turns. The process starts with the first question, and anew after one that had to
    be killed, or when it has died of something else."""

    def __init__(self, module: str, greeting: bytes, *, cpu_limit_s: float, memory_bytes: int) -> None:
        """`memory_bytes`: beyond what the process has once it is ready."""
        self._arguments = ["-m", module, str(cpu_limit_s), str(memory_bytes)]
        self._greeting = greeting
        self._patience_s = PATIENCE * cpu_limit_s
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False

    def ask(self, question: bytes) -> bytes:
        """Raises OutOfTime, Crashed, ShuttingDown once it is closed, or PenstockError if there can be no process."""
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
                        raise PenstockError("a helper process does not start")
                self._child.ask(question)
                answer = self._child.answer(self._patience_s)
                if answer is not None:
                    return answer
                too_long = self._child.out_of_time
                self._dismiss()
                if too_long:
                    raise OutOfTime
                # One that has answered before may have been dead already, or killed by somebody: only of a new one is
                # it certain enough that the question was its death.
                if fresh and not self._closed:
                    raise Crashed
            raise ShuttingDown("the helper process has been ended")

    def close(self) -> None:
        self._closed = True
        if (child := self._child) is not None:
            child.kill()  # whoever waits for it waits no longer
        with self._lock:
            self._dismiss()

    def _dismiss(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """The process, and a thread that reads what it says."""

    def __init__(self, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            process_group=0,  # out of reach of the terminal's Ctrl-C
        )
        self._lines: SimpleQueue[bytes] = SimpleQueue()  # b"": it has ended
        self._reader = threading.Thread(target=self._read, name="answers of a helper process", daemon=True)
        self._reader.start()

    def ask(self, question: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died; `answer` will tell
            self._process.stdin.write(question + b"\n")
            self._process.stdin.flush()

    def answer(self, limit_s: float) -> bytes | None:
        """None: it is still busy, or has died."""
        try:
            line = self._lines.get(timeout=limit_s)
        except Empty:
            return None
        return line[:-1] if line else None

    @property
    def out_of_time(self) -> bool:
        """Of one that has not answered: whether it would have done so later."""
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
            with contextlib.suppress(OSError):  # about what it did not read any more
                if pipe is not None:
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")
        self._process.wait()  # one that dies while nobody asks is no zombie until somebody does


# --- the child's side


def answer_questions(prepare: Callable[[bytes], Answer | bytes]) -> None:
    """`prepare` gets the greeting, and gives what answers questions, or the answer to all of them. Ends with its
    input. Runs on a small stack, so that what exhausts it does so here and not in an engine."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the process that started this one
        signal.signal(number, signal.SIG_IGN)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(prepare, float(sys.argv[1]), int(sys.argv[2])))
    thread.start()
    thread.join()


def _serve(prepare: Callable[[bytes], Answer | bytes], cpu_limit_s: float, memory_bytes: int) -> None:
    answer = prepare(sys.stdin.buffer.readline()[:-1])
    if isinstance(answer, bytes):
        _say(answer)
        return
    _say(b"")
    _bound_memory(memory_bytes)
    for line in sys.stdin.buffer:
        _set_alarm(cpu_limit_s)
        _say(answer(line[:-1]))
        _set_alarm(0.0)


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _set_alarm(cpu_s: float) -> None:
    """Die of SIGPROF after so much more CPU time, whoever is left to notice; 0: not any more."""
    if hasattr(signal, "setitimer"):  # not everywhere
        signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _bound_memory(more_bytes: int) -> None:
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
