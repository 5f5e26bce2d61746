"""Tables on the terminal, and in pipes and files."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 1000  # columns: nothing is cut that another program reads


def table_console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_table(table: Table) -> None:
    table_console().print(table)
