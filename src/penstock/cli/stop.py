"""penstock stop: a running server unloads a model."""

from __future__ import annotations

import click

from penstock.cli.options import debug_option
from penstock.cli.remote import Remote, server_option
from penstock.cli.sleep import change_state


@click.command()
@click.argument("model", required=False)
@server_option
@debug_option
def stop(model: str | None, url: str, api_key: str | None) -> None:
    """Unload MODEL of a running server, once its requests have ended: its processes end. The next request loads it
    again. (`penstock sleep` keeps the processes; Ctrl-C or SIGTERM ends the server itself.)"""
    change_state("/admin/unload", model, Remote(url, api_key))
