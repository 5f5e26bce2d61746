"""A progress bar for long batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG_BATCH = 8  # from here on a terminal gets one


@contextmanager
def bar(doing: str, total: int, *, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """Gives what to call for each item that is done. `wanted` None: if it is a long batch and somebody can see it."""
    if not (total >= LONG_BATCH and sys.stderr.isatty() if wanted is None else wanted):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda: progress.advance(task)
