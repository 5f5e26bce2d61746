"""penstock wake: see `cli.sleep`."""

from __future__ import annotations

import click

from penstock.cli.options import debug_option
from penstock.cli.remote import Remote, server_option
from penstock.cli.sleep import change_state


@click.command()
@click.argument("model", required=False)
@server_option
@debug_option
def wake(model: str | None, url: str, api_key: str | None) -> None:
    """Wake MODEL and wait until it is ready."""
    change_state("/wake_up", model, Remote(url, api_key))
