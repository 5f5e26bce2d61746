"""The engine's compiled grammars."""

from __future__ import annotations

import threading
from collections import OrderedDict
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler

if TYPE_CHECKING:
    from llguidance import LLMatcher

CAPACITY = 128  # grammars
THREADS = 2  # that compile
# The frontend compiles on a smaller stack (see `worker`): what did not exhaust that one does not exhaust this one.
STACK_BYTES = 64 << 20


class GrammarCache:
    """Keeps those used last. `prepare` compiles in the background; all the rest belongs to the engine's own thread."""

    def __init__(self, compiler: Compiler, capacity: int = CAPACITY) -> None:
        self._compiler = compiler
        self._capacity = capacity
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._preparing: set[Constraint] = set()
        self._wanted: SimpleQueue[Constraint] = SimpleQueue()
        self._done: SimpleQueue[tuple[Constraint, LLMatcher | PenstockError]] = SimpleQueue()

    @property
    def end_tokens(self) -> list[int]:
        """What matchers take for the end of a text."""
        return self._compiler.vocabulary().eos_tokens

    def has(self, constraint: Constraint) -> bool:
        return constraint in self._compiled

    def prepare(self, constraint: Constraint) -> None:
        """`finished` will tell of it."""
        if constraint not in self._preparing:
            self._preparing.add(constraint)
            self._wanted.put(constraint)
            if len(self._threads) < min(THREADS, len(self._preparing)):
                self._start()

    def finished(self, wait_s: float = 0.0) -> list[tuple[Constraint, PenstockError | None]]:
        """What has been prepared since, and what is wrong with it; waits for the first up to `wait_s`."""
        found: list[tuple[Constraint, PenstockError | None]] = []
        while self._preparing:
            try:
                constraint, outcome = self._done.get(timeout=wait_s) if wait_s else self._done.get_nowait()
            except Empty:
                break
            wait_s = 0.0
            self._preparing.remove(constraint)
            if isinstance(outcome, PenstockError):
                found.append((constraint, outcome))
            else:
                self._keep(constraint, outcome)
                found.append((constraint, None))
        return found

    def matcher(self, constraint: Constraint) -> LLMatcher:
        """One at the start of a text, for one sequence. Compiles it now if it has been dropped meanwhile."""
        if constraint in self._compiled:
            self._compiled.move_to_end(constraint)
        else:
            self._keep(constraint, self._compiler.compile(constraint))
        return self._compiled[constraint].deep_copy()

    def _keep(self, constraint: Constraint, matcher: LLMatcher) -> None:
        self._compiled[constraint] = matcher
        while len(self._compiled) > self._capacity:
            self._compiled.popitem(last=False)

    def _start(self) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            self._threads.append(threading.Thread(target=self._compile, name="grammar", daemon=True))
            self._threads[-1].start()
        finally:
            threading.stack_size(before)

    def _compile(self) -> None:
        while True:
            constraint = self._wanted.get()
            try:
                self._done.put((constraint, self._compiler.compile(constraint)))
            except PenstockError as error:
                self._done.put((constraint, error))
            except Exception as error:  # whatever it is, somebody waits for it
                self._done.put((constraint, PenstockError(f"compiling the constraint failed: {error}")))
