"""penstock models: the catalogue and the models on this machine."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console
from rich.table import Table

from penstock.cli.options import debug_option
from penstock.cli.text import size_text
from penstock.store.listing import known_models


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@debug_option
def models(as_json: bool) -> None:
    """List the catalogue and what else is in the cache folder."""
    known = known_models()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(known)).decode())
        return
    table = Table("name", "size", "here", "licence", "what it is", box=None, pad_edge=False)
    for model in known:
        size = size_text(model.size_bytes) if model.size_bytes is not None else ""
        here = "yes" if model.pulled else "no"
        table.add_row(model.name, size, here, model.license or "", model.description or model.source)
    Console().print(table)
