"""Whether a constraint can be compiled: the frontend finds out before anything is queued.

llguidance bounds most of what it does, but not all: some schemas keep it busy for hours, and some grammars exhaust its
stack, which no exception can catch. So it is tried in a process that may be killed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path

import msgspec

from penstock.errors import InvalidRequest, by_code
from penstock.flow import Constraint
from penstock.grammar.check_process import Verdict, Vocabulary
from penstock.grammar.compiler import NO_TOKENIZER
from penstock.grammar.constraint_grammar import check_size, constraint_error
from penstock.system.killable_process import Crashed, HelperProcess, OutOfTime

COMPILE_LIMIT_S = 5.0  # of CPU time
MEMORY_BYTES = 512 << 20  # beyond what the vocabulary takes
CAPACITY = 1024  # verdicts


class Checker:
    """Implements flow.ConstraintChecker. Threads may share it; they take turns."""

    def __init__(
        self,
        tokenizer: Path | None,
        vocab_size: int,
        end_tokens: tuple[int, ...],
        *,
        limit_s: float = COMPILE_LIMIT_S,
    ) -> None:
        self._tokenizer = tokenizer
        self._limit_s = limit_s
        greeting = msgspec.json.encode(Vocabulary(str(tokenizer), vocab_size, end_tokens))
        self._helper = HelperProcess(
            "penstock.grammar.check_process", greeting, cpu_limit_s=limit_s, memory_bytes=MEMORY_BYTES
        )
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()  # by digest: sources may be long

    def check(self, constraint: Constraint) -> None:
        if self._tokenizer is None:
            raise InvalidRequest(NO_TOKENIZER, param=constraint.param)
        check_size(constraint)
        digest = _digest(constraint)
        verdict = self._verdicts.get(digest)
        if verdict is None:
            with self._lock:
                verdict = self._verdicts.get(digest) or self._ask(constraint)
                self._verdicts[digest] = verdict
                while len(self._verdicts) > CAPACITY:
                    self._verdicts.popitem(last=False)
        if verdict.error is not None:
            raise by_code(verdict.code, verdict.error, verdict.param)

    def close(self) -> None:
        self._helper.close()

    def _ask(self, constraint: Constraint) -> Verdict:
        try:
            answer = self._helper.ask(msgspec.json.encode(constraint))
        except OutOfTime:
            return _refusal(constraint, f"it takes more than {self._limit_s:g} s to compile")
        except Crashed:
            return _refusal(constraint, "it is too large or too deep")
        return msgspec.json.decode(answer, type=Verdict)


def _digest(constraint: Constraint) -> bytes:
    return blake2b(f"{constraint.kind} {constraint.source}".encode(errors="surrogatepass")).digest()


def _refusal(constraint: Constraint, why: str) -> Verdict:
    error = constraint_error(constraint, why)
    return Verdict(error.message, error.code, error.param)
