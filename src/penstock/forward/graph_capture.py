"""CUDA graph capture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

from penstock.system import gc_control

T = TypeVar("T")


class GraphCapture:
    """Captures CUDA graphs on its own stream, into one memory pool. The pool keeps the size it has grown to as long as
    the capture or one of its graphs exists."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """As `torch.cuda.graph`, which however returns all unused memory to the device each time."""
        graphs, made = self.capture_pieces(lambda _: work())
        return graphs[0], made

    def capture_pieces(self, work: Callable[[Callable[[], None]], T]) -> tuple[list[torch.cuda.CUDAGraph], T]:
        """Capture `work` as several graphs: it calls its argument where one ends and the next begins. The garbage
        collector is off meanwhile: destroying a graph or an event breaks the capture."""
        graphs: list[torch.cuda.CUDAGraph] = []

        def begin() -> None:
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool=self._pool, capture_error_mode="thread_local")

        def split() -> None:
            graphs[-1].capture_end()
            begin()

        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), gc_control.paused():
            begin()
            try:
                made = work(split)
            except BaseException:
                with suppress(RuntimeError):  # the first error is the one to report
                    graphs[-1].capture_end()
                raise
            graphs[-1].capture_end()
        self._first = self._first or graphs[0]
        return graphs, made
