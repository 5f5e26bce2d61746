"""penstock wake: see `cli.sleep`."""

from __future__ import annotations

import click

from penstock.cli.options import debug_option
from penstock.cli.remote import DEFAULT_URL, Remote, key_option
from penstock.cli.sleep import change_state


@click.command()
@click.argument("model", required=False)
@click.option("--url", default=DEFAULT_URL, show_default=True, help="The server.")
@key_option
@debug_option
def wake(model: str | None, url: str, api_key: str | None) -> None:
    """Wake MODEL and wait until it is ready."""
    change_state("/wake_up", model, Remote(url, api_key))
