"""Traces of what a model computes (`forward.model_trace`): one at a time, in a thread. The engine's loop continues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidRequest

logger = logging.getLogger(__name__)

MAX_KEPT = 4  # results not yet fetched: their clients may have disconnected

# trace(tokens, layer, position, stopped): what it found, or None if it was stopped.
Trace = Callable[[list[int], int, int, Callable[[], bool]], dict[str, Any] | None]


class ModelTraces:
    """The queries `trace_start`, `trace_result` and `trace_cancel`."""

    def __init__(self, trace: Trace | None) -> None:
        """None: this backend traces nothing."""
        self._trace = trace
        self._number = 0
        self._stop = threading.Event()
        self._outcomes: dict[int, dict[str, Any]] = {}  # by number, until they are asked for; the newest MAX_KEPT
        self._thread: threading.Thread | None = None

    def start(self, tokens: list[int], layer: int, position: int) -> int | None:
        """The number of the trace; None while another one runs."""
        if self._trace is None:
            raise InvalidRequest(
                "the inside of a model can be traced on a CPU only, and not with tensor_parallel", param="model"
            )
        if self._thread is not None and self._thread.is_alive():
            return None
        self._number += 1
        self._stop = threading.Event()
        call = (self._number, self._trace, self._stop, tokens, layer, position)
        self._thread = threading.Thread(target=self._run, args=call, name="model-trace", daemon=True)
        self._thread.start()
        return self._number

    def result(self, number: int) -> dict[str, Any] | None:
        """None: it is still running. Otherwise `found` or `error`, once."""
        if number == self._number and self._thread is not None and self._thread.is_alive():
            return None
        return self._outcomes.pop(number, None) or {"error": "the trace was cancelled"}

    def cancel(self, number: int) -> None:
        if number == self._number:
            self._stop.set()

    def _run(
        self, number: int, trace: Trace, stop: threading.Event, tokens: list[int], layer: int, position: int
    ) -> None:
        try:
            found = trace(tokens, layer, position, stop.is_set)
            outcome: dict[str, Any] | None = None if found is None else {"found": found}
        except Exception as error:
            logger.exception("tracing the model failed")
            outcome = {"error": f"tracing the model failed: {type(error).__name__}"}
        if outcome is not None:
            self._outcomes[number] = outcome
        while len(self._outcomes) > MAX_KEPT:
            del self._outcomes[min(self._outcomes)]
