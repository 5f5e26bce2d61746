"""The engine's compiled grammars: an LRU cache that compiles in background threads."""

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
COMPILER_THREADS = 2
# The frontend has compiled the constraint on a smaller stack (`check_process`), so this one suffices.
STACK_BYTES = 64 << 20


class GrammarCache:
    """Call all methods from the engine's thread; `prepare` compiles in the background."""

    def __init__(self, compiler: Compiler, capacity: int = CAPACITY) -> None:
        self._compiler = compiler
        self._capacity = capacity
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._preparing: set[Constraint] = set()
        self._queue: SimpleQueue[Constraint] = SimpleQueue()
        self._results: SimpleQueue[tuple[Constraint, LLMatcher | PenstockError]] = SimpleQueue()

    @property
    def end_tokens(self) -> list[int]:
        """Tokens that matchers accept as the end of a text."""
        return self._compiler.vocabulary().eos_tokens

    def has(self, constraint: Constraint) -> bool:
        return constraint in self._compiled

    def prepare(self, constraint: Constraint) -> None:
        """Start to compile; `take_finished` reports it."""
        if constraint not in self._preparing:
            self._preparing.add(constraint)
            self._queue.put(constraint)
            if len(self._threads) < min(COMPILER_THREADS, len(self._preparing)):
                self._start()

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Constraint, PenstockError | None]]:
        """Constraints compiled since the last call, with their errors. Waits up to `wait_s` for the first."""
        found: list[tuple[Constraint, PenstockError | None]] = []
        while self._preparing:
            try:
                constraint, outcome = self._results.get(timeout=wait_s) if wait_s else self._results.get_nowait()
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
        """A matcher at the start of a text, for one sequence. Compiles now if the cache has evicted the grammar."""
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
            constraint = self._queue.get()
            try:
                self._results.put((constraint, self._compiler.compile(constraint)))
            except PenstockError as error:
                self._results.put((constraint, error))
            except Exception as error:  # the sequence waits for an answer
                self._results.put((constraint, PenstockError(f"compiling the constraint failed: {error}")))
