"""How far something has come, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.store.progress import Progress as Report

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def download_bar(say: Callable[[str], None] | None = None) -> Iterator[Report]:
    """Shows nothing before the first report. Without a terminal, one line per phase; with `say`, through that."""
    bars: list[Progress] = []  # one, from the first report on: most starts download nothing
    tasks: dict[str, TaskID] = {}

    def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
        if not bars:
            bars.append(_bar())
        bar = bars[0]
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total_bytes)
            if say is not None:
                say(what)
            elif bar.console.is_terminal:
                bar.start()
            else:
                bar.console.print(what)
        bar.update(tasks[what], completed=done_bytes, total=total_bytes)

    try:
        yield report
    finally:
        for bar in bars:
            if bar.live.is_started:
                bar.stop()


@contextmanager
def counting() -> Iterator[Callable[[str, int, int], None]]:
    """Takes what is done, how much of it and of how much: a line that counts, or, without a terminal, one for each
    stage that is over. An error gets a line of its own."""
    is_terminal = sys.stderr.isatty()
    unfinished = False

    def report(what: str, done: int, count: int) -> None:
        nonlocal unfinished
        if is_terminal:
            click.echo(f"\r\x1b[K{what} {done}/{count}", nl=done == count, err=True)
            unfinished = done < count
        elif done == count:
            click.echo(f"{what} {done}/{count}", err=True)

    try:
        yield report
    finally:
        if unfinished:
            click.echo(err=True)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
