"""penstock rm: removes pulled models from the disk."""

from __future__ import annotations

import click

from penstock.cli.options import debug_option
from penstock.cli.text import size_text
from penstock.store.remove import remove


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@debug_option
def rm(models: tuple[str, ...]) -> None:
    """Remove pulled models from the cache folder. Your own folders and .gguf files are never touched."""
    for model in models:
        click.echo(f"{model}: removed, {size_text(remove(model))} free again")
