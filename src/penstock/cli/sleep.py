"""penstock sleep and penstock wake: the memory of a running server's model is released, and taken again."""

from __future__ import annotations

from urllib.parse import urlencode

import click

from penstock.cli.options import debug_option
from penstock.cli.remote import Remote, server_option

CHANGE_S = 600.0  # requests end first, and a large model is loaded for minutes


@click.command()
@click.argument("model", required=False)
@server_option
@debug_option
def sleep(model: str | None, url: str, api_key: str | None) -> None:
    """Release the memory of MODEL, once its requests have ended. Its processes stay; the next request wakes it."""
    change_state("/sleep", model, Remote(url, api_key))


def change_state(path: str, model: str | None, remote: Remote) -> None:
    """Show the state of the model after that."""
    query = "" if model is None else "?" + urlencode({"model": model})
    found = remote.post(path + query, {}, CHANGE_S)
    click.echo(f"{found['id']}: {found['state']}")
