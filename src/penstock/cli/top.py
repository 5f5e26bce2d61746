"""penstock top: a running server, live in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from penstock.cli.keys import quitting_on_q
from penstock.cli.options import debug_option
from penstock.cli.remote import DEFAULT_URL, Remote, key_option
from penstock.errors import InvalidRequest, PenstockError, Unauthorized

RETRY_S = 1.0
HISTORY = "/observe/history?seconds=120&points=60"
MINUTE = "/observe/history?seconds=60&points=1"
RATES = ("tokens_per_s", "prompt_tokens_per_s")


@click.command()
@click.argument("url", default=DEFAULT_URL)
@click.option("--interval", type=click.FloatRange(0.1, 5), default=1.0, show_default=True, help="Seconds a frame.")
@click.option("--once", is_flag=True, help="Print one frame and end, for scripts.")
@key_option
@debug_option
def top(url: str, interval: float, once: bool, api_key: str | None) -> None:
    """Watch the server at URL: throughput, latencies, queue, KV cache, requests. q or Ctrl-C leaves."""
    from rich.console import Console
    from rich.live import Live

    from penstock.cli.top_frame import frame, lost

    remote, console = Remote(url, api_key), Console(highlight=False)
    if not once and not console.is_terminal:
        raise InvalidRequest("this is no terminal: --once prints a single frame", param="once")
    frames = snapshots(remote, interval)
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
            frames = snapshots(remote, interval)


def snapshots(remote: Remote, interval_s: float) -> Iterator[dict[str, Any]]:
    """What a frame is made of, at every tick of the server's live feed."""
    facts = remote.get("/observe/facts")
    feed = remote.events(f"/observe/live?interval_ms={round(interval_s * 1000)}")
    for count, data in enumerate(data for name, data in feed if name == "tick"):
        history = remote.get(HISTORY)
        if not count:  # rates are differences of two ticks: the first has none
            data["stats"] |= {name: history[name][-1] for name in RATES if history[name]}
        yield {
            "url": remote.url,
            "facts": facts,
            **data,
            "open": remote.get("/observe/requests?state=open&limit=100")["requests"],
            "cache": remote.get("/observe/cache"),
            "history": history,
            "minute": remote.get(MINUTE),
        }
