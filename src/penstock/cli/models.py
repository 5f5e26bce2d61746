"""penstock list (also `penstock models`): the catalogue and the models on this machine."""

from __future__ import annotations

import click
import msgspec

from penstock.cli.options import debug_option
from penstock.cli.text import size_text
from penstock.store.listing import KnownModel, known_models


@click.command("list")
@click.argument("text", required=False)
@click.option("--pulled", is_flag=True, help="Only models on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@debug_option
def models(text: str | None, pulled: bool, as_json: bool) -> None:
    """List the catalogue and the other models in the cache folder; with TEXT, those with it in name or description.

    `penstock pull NAME` downloads one, `penstock show NAME` says more about it.
    """
    known = [model for model in known_models() if (model.pulled or not pulled) and _matches(model, text)]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(known)).decode())
        return
    if not known:
        click.echo("no such model; `penstock list` shows all" if text or pulled else "none", err=True)
        return
    _print(known)


def _matches(model: KnownModel, text: str | None) -> bool:
    return text is None or text.lower() in f"{model.name} {model.description} {model.source}".lower()


def _print(known: list[KnownModel]) -> None:
    from rich.table import Table
    from rich.text import Text

    from penstock.cli.tables import table_console

    console = table_console()
    wide = not console.is_terminal or console.width >= 110
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("name", "", "size", "weights", "licence"):
        table.add_column(head, no_wrap=True, justify="right" if head == "size" else "left")
    if wide:
        table.add_column("what it is", no_wrap=console.is_terminal, overflow="ellipsis")
    for model in known:
        name = Text(model.name, style="bold" if model.pulled else "")
        row: list[Text | str] = [
            name,
            Text("here", "green") if model.pulled else Text(""),
            shown_size(model),
            model.quantization or "",
        ]
        table.add_row(*row, model.license or "", *([Text(model.description or model.source)] if wide else []))
    console.print(table)
    if any(model.verified is False for model in known):
        console.print(
            Text(
                "~ approximate size: these files of the hub have not been pulled and verified by this project. "
                "NAME-q8_0 takes another quantization.",
                style="dim",
            )
        )


def shown_size(model: KnownModel) -> str:
    if model.size_bytes is not None:
        return size_text(model.size_bytes)
    return f"~{size_text(model.about_bytes)}" if model.about_bytes is not None else ""
