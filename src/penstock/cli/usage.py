"""penstock usage: what the requests of a running server used and cost."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import click
from rich.markup import escape
from rich.table import Table

from penstock.cli.options import debug_option
from penstock.cli.remote import Remote, server_option
from penstock.cli.tables import print_table
from penstock.errors import did_you_mean
from penstock.gateway.ledger.queries import GROUPS

HEADS = {
    "requests": "requests", "input_tokens": "input", "cached_tokens": "cached", "output_tokens": "output",
    "cost_usd": "cost, USD", "cache_savings_usd": "saved, USD",
}  # fmt: skip


def _check_groups(ctx: click.Context, option: click.Parameter, given: str) -> str:
    for name in given.split(","):
        if name.strip() not in ("", *GROUPS):
            guess = did_you_mean(name.strip(), GROUPS)
            raise click.BadParameter(f"{name.strip()!r} is none of {', '.join(GROUPS)}{guess}")
    return given


@click.command()
@click.option("--from", "since", metavar="DATE", help="Since this UTC date, or ISO 8601 time.")
@click.option("--to", "until", metavar="DATE", help="Until the end of this date, or this time.")
@click.option(
    "--by",
    default="model",
    show_default=True,
    callback=_check_groups,
    help=f"Group by {', '.join(GROUPS)}; with commas.",
)
@click.option("--tenant", help="Only this tenant's requests.")
@click.option("--key", help="Only requests of this key, by its id.")
@click.option("--model", help="Only requests that this model answered.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@server_option
@debug_option
def usage(
    since: str | None, until: str | None, by: str, as_json: bool, as_csv: bool, url: str, api_key: str | None,
    **only: str | None,
) -> None:  # fmt: skip
    """Show tokens and cost by model, tenant, key and day. A key sees its own tenant; one with the scope admin sees
    all. The server needs a ledger (penstock serve --ledger)."""
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    given = {"from": since, "to": until, "group_by": by, **only, "format": "csv" if as_csv else None}
    path = "/usage?" + urlencode({name: value for name, value in given.items() if value is not None})
    remote = Remote(url, api_key)
    if as_csv:
        click.echo(remote.text(path), nl=False)
        return
    report = remote.get(path)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        print_table(_table(report))


def _table(report: dict[str, Any]) -> Table:
    groups: list[str] = report["group_by"]
    table = Table(box=None, pad_edge=False)
    for name in groups:
        table.add_column(name, overflow="fold")  # ids are copied from it
    for head in HEADS.values():
        table.add_column(head, justify="right")
    for row in report["data"]:
        table.add_row(*(_group(row, name) for name in groups), *_numbers(row))
    if len(report["data"]) != 1:
        table.add_row(*[*(["total"] if groups else []), *[""] * (len(groups) - 1)], *_numbers(report["total"]))
    return table


def _group(row: dict[str, Any], name: str) -> str:
    value = escape(row[name]) or "-"
    return f"{escape(row['key_name'])} ({value})" if name == "key" and row["key_name"] else value


def _numbers(row: dict[str, Any]) -> list[str]:
    return [f"{row[name]:.6f}" if name.endswith("usd") else f"{row[name]:,}" for name in HEADS]
