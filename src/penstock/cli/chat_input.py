"""Reads messages of a chat: one line, several between three quotes, or lines that end with a backslash."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from penstock.settings.data_dir import data_folder

QUOTES = '"""'
HISTORY_LINES = 2000


def read_message() -> str | None:
    """None at the end of the input. Ctrl-C drops what was begun."""
    while True:
        try:
            line = _read_line("> ")
            if line is None or line.startswith("/"):
                return line
            if line.lstrip().startswith(QUOTES):
                return _read_quoted(line.lstrip().removeprefix(QUOTES))
            while line.endswith("\\"):
                more = _read_line(". ")
                line = line[:-1] + ("" if more is None else f"\n{more}")
            return line
        except KeyboardInterrupt:
            click.echo("\n(Ctrl-D leaves)", err=True)


def _read_quoted(first: str) -> str:
    lines = [first]
    while QUOTES not in lines[-1]:
        more = _read_line(". ")
        if more is None:
            break
        lines.append(more)
    lines[-1] = lines[-1].partition(QUOTES)[0]
    return "\n".join(lines).strip("\n")


def _read_line(prompt: str) -> str | None:
    try:
        return input(prompt if sys.stdin.isatty() else "")
    except EOFError:
        return None


@contextmanager
def saved_line_history() -> Iterator[None]:
    """Lines that were typed are there again in the next chat (arrow up, Ctrl-R). Only their user may read the file."""
    try:
        import readline
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    file = data_folder(None) / "chat_history"
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)
