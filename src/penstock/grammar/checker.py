"""Checks that a constraint can be compiled, in the frontend, before its request is queued.

llguidance bounds most of its work, but not all: some schemas keep it busy for hours, and some grammars exhaust its
stack, which no exception can catch. So a process that can be killed compiles the constraint. There are two: a quick one
with a short limit, and a slow one for constraints that exceed it, so that these delay each other and no others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path

import msgspec

from penstock.errors import InvalidRequest, QueueFull, by_code
from penstock.flow import Constraint
from penstock.grammar.check_process import Verdict, Vocabulary
from penstock.grammar.compiler import NO_TOKENIZER
from penstock.grammar.constraint_grammar import check_size, constraint_error
from penstock.system import typed
from penstock.system.killable_process import Crashed, HelperProcess, OutOfTime

COMPILE_LIMIT_S = 5.0  # of CPU time
QUICK_LIMIT_S = 0.5  # of CPU time; typical constraints take milliseconds
MAX_SLOW = 4  # constraints that are in the slow process or wait for it: fewer than threads that check constraints
MEMORY_BYTES = 512 << 20  # beyond what the vocabulary takes
CAPACITY = 1024  # verdicts


class Checker:
    """Implements flow.ConstraintChecker. Thread-safe."""

    def __init__(
        self,
        tokenizer: Path | None,
        vocab_size: int,
        end_tokens: tuple[int, ...],
        *,
        limit_s: float = COMPILE_LIMIT_S,
        quick_limit_s: float = QUICK_LIMIT_S,
    ) -> None:
        self._tokenizer = tokenizer
        self._limit_s = limit_s
        greeting = msgspec.json.encode(Vocabulary(str(tokenizer), vocab_size, end_tokens))
        self._quick, self._slow = (
            HelperProcess("penstock.grammar.check_process", greeting, cpu_limit_s=limit, memory_bytes=MEMORY_BYTES)
            for limit in (quick_limit_s, limit_s)
        )
        self._quick_turn = threading.Lock()
        self._slow_turn = threading.Lock()
        self._slow_places = threading.Semaphore(MAX_SLOW)
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()  # by digest: sources may be long

    def check(self, constraint: Constraint) -> None:
        """Raises QueueFull if too many slow constraints wait already."""
        if self._tokenizer is None:
            raise InvalidRequest(NO_TOKENIZER, param=constraint.param)
        check_size(constraint)
        digest = _digest(constraint)
        verdict = self._verdicts.get(digest) or self._check_quickly(digest, constraint)
        if verdict is None:
            verdict = self._check_slowly(digest, constraint)
        if verdict.error is not None:
            raise by_code(verdict.code, verdict.error, verdict.param)

    def close(self) -> None:
        self._quick.close()
        self._slow.close()

    def _check_quickly(self, digest: bytes, constraint: Constraint) -> Verdict | None:
        """None: it takes too long for the quick process."""
        with self._quick_turn:
            try:
                return self._verdicts.get(digest) or self._ask(self._quick, digest, constraint)
            except OutOfTime:
                return None

    def _check_slowly(self, digest: bytes, constraint: Constraint) -> Verdict:
        if not self._slow_places.acquire(blocking=False):
            raise QueueFull("too many constraints that take long to compile wait already: try again later")
        try:
            with self._slow_turn:
                return self._verdicts.get(digest) or self._ask(self._slow, digest, constraint)
        except OutOfTime:
            return self._keep(digest, _rejection(constraint, f"it takes more than {self._limit_s:g} s to compile"))
        finally:
            self._slow_places.release()

    def _ask(self, process: HelperProcess, digest: bytes, constraint: Constraint) -> Verdict:
        try:
            verdict = typed.decode_json(process.ask(msgspec.json.encode(constraint)), Verdict)
        except Crashed:
            verdict = _rejection(constraint, "it is too large or too deep")
        return self._keep(digest, verdict)

    def _keep(self, digest: bytes, verdict: Verdict) -> Verdict:
        self._verdicts[digest] = verdict
        while len(self._verdicts) > CAPACITY:
            self._verdicts.popitem(last=False)
        return verdict


def _digest(constraint: Constraint) -> bytes:
    return blake2b(f"{constraint.kind} {constraint.source}".encode(errors="surrogatepass")).digest()


def _rejection(constraint: Constraint, reason: str) -> Verdict:
    error = constraint_error(constraint, reason)
    return Verdict(error.message, error.code, error.param)
