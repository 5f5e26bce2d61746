"""penstock ps: the models of a running server."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import debug_option
from penstock.cli.remote import Remote, server_option
from penstock.cli.text import size_text, time_text
from penstock.errors import Forbidden

if TYPE_CHECKING:
    from rich.table import Table

FIGURES = ("replicas", "weights", "KV cache", "in use", "requests", "context")
HEADS = ("model", "state", "device", *FIGURES, "until")
LEAST_WANTED = ("context", "device", "replicas", "weights", "until", "KV cache")  # in a narrow terminal
GAP = 2  # columns of the terminal between two of the table
CIRCUITS = {"open": "circuit open", "half_open": "circuit half open", "held": "asked for a pause"}


@click.command()
@server_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debug_option
def ps(url: str, api_key: str | None, as_json: bool) -> None:
    """List the models of a running server: state, requests, memory, and when each is unloaded."""
    import msgspec

    remote = Remote(url, api_key)
    try:
        listed = remote.get("/admin/models")["data"]
    except Forbidden:  # a key without the scope admin sees names and states
        listed = remote.get("/v1/models")["data"]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(listed)).decode())
    else:
        _print(listed)


def _print(listed: list[dict[str, Any]]) -> None:
    from penstock.cli.tables import table_console

    rows = [
        [
            model["id"],
            _state(model),
            *_figures(model),
            f"{model['max_model_len']:,}" if model.get("max_model_len") else "",
            _until(model),
        ]
        for model in listed
    ]
    console = table_console()
    console.print(_table(rows, shown_heads(rows, console.width)))


def shown_heads(rows: list[list[str]], width: int) -> list[str]:
    """The columns that have room side by side."""
    widths = {head: max(len(row[place]) for row in [HEADS, *rows]) for place, head in enumerate(HEADS)}
    for head in LEAST_WANTED:
        if sum(widths.values()) + GAP * (len(widths) - 1) <= width:
            break
        del widths[head]
    return [*widths]


def _table(rows: list[list[str]], heads: list[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head, justify="right" if head in FIGURES else "left", overflow="fold")
    for row in rows:
        cells = dict(zip(HEADS, map(Text, row), strict=True))
        cells["model"].style = "bold"
        cells["state"].style = "green" if cells["state"].plain == "ready" else "yellow"
        table.add_row(*map(cells.__getitem__, heads))
    return table


def _state(model: dict[str, Any]) -> str:
    """With what keeps requests from its deployments."""
    circuits = {part["breaker"]["state"] for part in model.get("deployments", [])}
    return ", ".join([model["state"], *(text for name, text in CIRCUITS.items() if name in circuits)])


def _figures(model: dict[str, Any]) -> list[str]:
    """Device, replicas, weights, KV cache, its use and open requests: over all replicas."""
    parts = model.get("deployments", [])
    if not parts:
        return ["", _replicas(model), *[""] * 4]
    weights, kv = (sum(part[name] or 0 for part in parts) for name in ("weights_bytes", "kv_bytes"))
    devices = ", ".join(sorted({part["device"] for part in parts if part["device"]}))
    uses = [part["kv_use"] for part in parts if part["kv_use"] is not None]
    return [
        devices,
        _replicas(model),
        size_text(weights) if weights else "",
        size_text(kv) if kv else "",
        f"{max(uses):.0%}" if uses else "",
        str(sum(part["open"] or 0 for part in parts)),
    ]


def _replicas(model: dict[str, Any]) -> str:
    """How many there are, with the limits where autoscaling may change that, or by role where they have one."""
    scaling = model.get("scaling")
    if scaling is None:
        return ""
    roles = Counter(one["role"] for one in model.get("deployments", []) if one.get("role"))
    if roles:
        return ", ".join(f"{count} {role}" for role, count in sorted(roles.items(), reverse=True))
    least, most = scaling["min_replicas"], scaling["max_replicas"]
    return str(scaling["replicas"]) if least == most else f"{scaling['replicas']} of {least}-{most}"


def _until(model: dict[str, Any]) -> str:
    if model.get("expires_s") is not None:
        return f"unloaded in {time_text(model['expires_s'])}"
    return "stays" if model.get("pinned") else ""
