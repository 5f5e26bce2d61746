"""penstock adapters: the LoRA adapters of a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from penstock.cli.options import debug_option
from penstock.cli.remote import Remote, server_option
from penstock.cli.text import size_text
from penstock.errors import InvalidSetting

CHANGE_S = 600.0  # an adapter may have to be downloaded; requests of one that is removed finish first
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def adapters() -> None:
    """List, add and remove the LoRA adapters of a running server.

    They are models of their own: requests name them as MODEL@ADAPTER. Added adapters are kept in the server's
    data folder and are there again after a restart.
    """


@adapters.command(name="list")
@server_option
@json_option
@debug_option
def list_adapters(url: str, api_key: str | None, as_json: bool) -> None:
    """List the adapters: size, rank, where their weights are, how often they were used."""
    listed = Remote(url, api_key).get("/admin/adapters")["data"]
    if as_json:
        _print_json(listed)
    elif not listed:
        click.echo("no adapters")
    else:
        _print(listed)


@adapters.command()
@click.argument("name")
@click.argument("source")
@click.option("--model", help="The base, if the server has several. [default: its first model]")
@click.option("--upload", is_flag=True, help="SOURCE is a folder or .gguf file on this machine: send it to the server.")
@click.option("--replace", is_flag=True, help="Replace an adapter of the same name.")
@server_option
@json_option
@debug_option
def add(
    name: str,
    source: str,
    model: str | None,
    upload: bool,
    replace: bool,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Serve the adapter SOURCE as MODEL@NAME.

    SOURCE is what the server can reach: a path inside its adapter_folders, a hub id or pypi:. With --upload it is a
    folder or .gguf file here.
    """
    remote = Remote(url, api_key)
    if upload:
        fields = {"name": name, "model": model, "replace": "true" if replace else None}
        files = _files(Path(source).expanduser())
        added = remote.upload("/admin/adapters/upload", {k: v for k, v in fields.items() if v}, files, CHANGE_S)
    else:
        body = {"name": name, "source": source, "model": model, "replace": replace}
        added = remote.post("/admin/adapters", body, CHANGE_S)
    if as_json:
        _print_json(added)
    else:
        click.echo(f"{added['id']}: rank {added['rank']}, {size_text(added['bytes'])}, version {added['version']}")


@adapters.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0, 3600), default=60.0, show_default=True,
    help="Seconds to wait for running requests.",
)  # fmt: skip
@server_option
@debug_option
def remove(names: tuple[str, ...], timeout_s: float, url: str, api_key: str | None) -> None:
    """Remove adapters from the server. New requests get a 404 at once; running ones finish first."""
    remote = Remote(url, api_key)
    for name in names:
        path = f"/admin/adapters/{quote(name, safe='@/')}?timeout_s={timeout_s:g}"
        removed = remote.delete(path, timeout_s + 30)
        click.echo(f"{removed['id']}: removed")


def _files(path: Path) -> dict[str, Path]:
    """The fields of the form that take the files."""
    if path.suffix == ".gguf":
        files = {"gguf": path}
    else:
        files = {"config": path / "adapter_config.json", "weights": path / "adapter_model.safetensors"}
    for file in files.values():
        if not file.is_file():
            raise InvalidSetting(f"there is no file {file}", param="source")
    return files


def _print(listed: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from penstock.cli.tables import table_console

    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("adapter", "where"):
        table.add_column(head, no_wrap=True)
    for head in ("rank", "size", "open", "hits", "loads"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("modules")
    for one in listed:
        known = one["residency"]
        where = ", ".join(sorted({part["state"] for part in known})) or "on disk"
        figures = [str(sum(part[name] for part in known)) for name in ("hits", "loads")]
        table.add_row(
            Text(one["id"], style="bold"), where, str(one["rank"]), size_text(one["bytes"]), str(one["open"]), *figures,
            ", ".join(one["modules"]),
        )  # fmt: skip
    console = table_console()
    console.print(table)
    for one in listed:
        for error in dict.fromkeys(part["error"] for part in one["residency"] if part["error"]):
            console.print(Text(f"{one['id']}: {error}", style="red"))


def _print_json(value: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
