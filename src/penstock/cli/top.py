"""penstock top: a running server, live in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import click
from click.core import ParameterSource

from penstock.cli.options import debug_option
from penstock.cli.quit_key import quitting_on_q
from penstock.cli.remote import Remote, server_option
from penstock.errors import InvalidRequest, PenstockError, Unauthorized

RETRY_S = 1.0
HISTORY = "/observe/history?seconds=120&points=60"
MINUTE = "/observe/history?seconds=60&points=1"
RATES = ("tokens_per_s", "prompt_tokens_per_s")


@click.command()
@click.argument("address", metavar="[URL]", required=False)
@click.option("--interval", type=click.FloatRange(0.1, 5), default=1.0, show_default=True, help="Seconds per frame.")
@click.option("--model", help="The model whose steps and KV cache are shown. [default: the first]")
@click.option("--replica", type=click.IntRange(min=0), help="The number of its replica. [default: 0]")
@click.option("--once", is_flag=True, help="Print one frame and end, for scripts.")
@server_option
@debug_option
@click.pass_context
def top(
    ctx: click.Context, address: str | None, url: str, interval: float, model: str | None, replica: int | None,
    once: bool, api_key: str | None,
) -> None:  # fmt: skip
    """Watch the server at URL, or --server: throughput, latencies, queue, KV cache, requests. q or Ctrl-C leaves."""
    from rich.console import Console
    from rich.live import Live

    from penstock.cli.top_frame import frame, lost

    if address is not None and ctx.get_parameter_source("url") is not ParameterSource.DEFAULT:
        raise click.UsageError("URL and --server exclude each other")
    remote, console = Remote(address or url, api_key), Console(highlight=False)
    if not once and not console.is_terminal:
        raise InvalidRequest("standard output is not a terminal; --once prints a single frame", param="once")
    source = {name: value for name, value in (("model", model), ("replica", replica)) if value is not None}
    frames = snapshots(remote, interval, source)
    first = next(frames)  # what is wrong with the address or the key is said before the screen is taken
    if once:
        console.print(frame(first, console.width, height=None))
        return
    shown = frame(first, console.width, console.height)
    with quitting_on_q(), Live(shown, console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                for snapshot in frames:
                    live.update(frame(snapshot, console.width, console.height), refresh=True)
                reason = "the server has ended the feed"
            except Unauthorized:
                raise
            except PenstockError as error:  # it may come back
                reason = error.message
            live.update(lost(reason), refresh=True)
            time.sleep(RETRY_S)
            frames = snapshots(remote, interval, source)


def snapshots(remote: Remote, interval_s: float, source: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """What a frame is made of, at every tick of the server's live feed. `source`: model and replica of the steps and
    the cache."""
    query = urlencode(source or {})
    feed = remote.events(f"/observe/live?interval_ms={round(interval_s * 1000)}&{query}")
    for count, data in enumerate(data for name, data in feed if name == "tick"):
        history = remote.get(HISTORY)
        if not count:  # rates are differences of two ticks: the first has none
            data["stats"] |= {name: history[name][-1] for name in RATES if history[name]}
        yield {
            "url": remote.url,
            "facts": remote.get(f"/observe/facts?{query}"),
            **data,
            "open": remote.get("/observe/requests?state=open&limit=100")["requests"],
            "cache": remote.get(f"/observe/cache?{query}"),
            "history": history,
            "minute": remote.get(MINUTE),
        }
