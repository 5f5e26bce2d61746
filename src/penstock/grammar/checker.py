"""Whether a constraint can be compiled: the frontend finds out before anything is queued.

llguidance bounds most of what it does, but not all: some schemas keep it busy for hours, and some grammars exhaust its
stack, which no exception can catch. So it is tried in a process that may be killed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from penstock.errors import InvalidRequest, PenstockError, ShuttingDown, by_code
from penstock.flow import Constraint
from penstock.grammar.compiler import NO_TOKENIZER
from penstock.grammar.source import unusable
from penstock.grammar.worker import Verdict
from penstock.settings import child_environment

COMPILE_LIMIT_S = 5.0  # of CPU time, so that a busy machine refuses nothing
PATIENCE = 10  # times as long is waited for it
START_LIMIT_S = 120.0
CAPACITY = 1024  # verdicts


class Checker:
    """Implements flow.ConstraintChecker. Threads may share it; they take turns. The process starts with the first
    constraint, and anew after one that had to be killed, or when it has died of something else."""

    def __init__(
        self,
        tokenizer: Path | None,
        vocab_size: int,
        end_tokens: tuple[int, ...],
        *,
        limit_s: float = COMPILE_LIMIT_S,
    ) -> None:
        self._tokenizer = tokenizer
        self._arguments = [str(tokenizer), str(vocab_size), ",".join(map(str, end_tokens)), str(limit_s)]
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[Constraint, Verdict] = OrderedDict()
        self._worker: _Worker | None = None
        self._closed = False

    def check(self, constraint: Constraint) -> None:
        if self._tokenizer is None:
            raise InvalidRequest(NO_TOKENIZER, param=constraint.param)
        verdict = self._verdicts.get(constraint)
        if verdict is None:
            with self._lock:
                verdict = self._verdicts.get(constraint) or self._ask(constraint)
                self._verdicts[constraint] = verdict
                while len(self._verdicts) > CAPACITY:
                    self._verdicts.popitem(last=False)
        if verdict.error is not None:
            raise by_code(verdict.code, verdict.error, verdict.param)

    def close(self) -> None:
        self._closed = True
        if (worker := self._worker) is not None:
            worker.kill()  # whoever waits for it waits no longer
        with self._lock:
            self._dismiss()

    def _ask(self, constraint: Constraint) -> Verdict:
        fresh = False
        while not self._closed:
            if self._worker is None:
                fresh = True
                self._worker = _Worker(self._arguments)
                started = self._worker.answer(START_LIMIT_S)
                if started is None or started.error is not None:
                    self._dismiss()
                    if started is not None:
                        return started
                    raise PenstockError("the process that compiles constraints does not start")
            self._worker.ask(constraint)
            verdict = self._worker.answer(PATIENCE * self._limit_s)
            if verdict is not None:
                return verdict
            too_long = self._worker.out_of_time
            self._dismiss()
            if too_long:
                return _refusal(constraint, f"it takes more than {self._limit_s:g} s to compile")
            # One that has answered before may have been dead already, or killed by somebody: only of a new one is it
            # certain enough that the constraint was its death.
            if fresh and not self._closed:
                return _refusal(constraint, "it is too large or too deep")
        raise ShuttingDown("no more constraints are compiled here")

    def _dismiss(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def _refusal(constraint: Constraint, why: str) -> Verdict:
    error = unusable(constraint, why)
    return Verdict(error.message, error.code, error.param)


class _Worker:
    """The process, and a thread that reads what it says."""

    def __init__(self, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.grammar.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            process_group=0,  # out of reach of the terminal's Ctrl-C
        )
        self._lines: SimpleQueue[bytes] = SimpleQueue()  # b"": it has ended
        self._reader = threading.Thread(target=self._read, name="grammar verdicts", daemon=True)
        self._reader.start()

    def ask(self, constraint: Constraint) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died; `answer` will tell
            self._process.stdin.write(msgspec.json.encode(constraint) + b"\n")
            self._process.stdin.flush()

    def answer(self, limit_s: float) -> Verdict | None:
        """None: it is still busy, or has died."""
        try:
            line = self._lines.get(timeout=limit_s)
        except Empty:
            return None
        return msgspec.json.decode(line, type=Verdict) if line else None

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
