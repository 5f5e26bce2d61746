"""penstock ps: the models of a running server."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from penstock.cli.options import debug_option
from penstock.cli.remote import Remote, server_option
from penstock.cli.text import size_text, time_text
from penstock.errors import Forbidden

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
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("model", "state", "device"):
        table.add_column(head, no_wrap=True)
    for head in ("replicas", "weights", "KV cache", "in use", "requests", "context"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("until", no_wrap=True)
    for model in listed:
        state = _state(model)
        shown = Text(state, style="green" if state == "ready" else "yellow")
        context = f"{model['max_model_len']:,}" if model.get("max_model_len") else ""
        table.add_row(Text(model["id"], style="bold"), shown, *_figures(model), context, _until(model))
    Console(highlight=False).print(table)


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
