"""A download bar on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from penstock.store.progress import Progress as Report


@contextmanager
def download_bar(say: Callable[[str], None] | None = None) -> Iterator[Report]:
    """Shows nothing before the first report. Without a terminal, one line per phase; with `say`, through that."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console
    )
    tasks: dict[str, TaskID] = {}

    def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total_bytes)
            if say is not None:
                say(what)
            elif console.is_terminal:
                bar.start()
            else:
                console.print(what)
        bar.update(tasks[what], completed=done_bytes, total=total_bytes)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()
