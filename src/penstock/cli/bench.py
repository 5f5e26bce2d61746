"""penstock bench: a load test of an OpenAI-compatible server."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from penstock.cli.options import debug_option
from penstock.cli.remote import Remote, server_option
from penstock.errors import InvalidRequest, PenstockError

DEFAULT_REQUESTS = 100


@click.command()
@server_option
@click.option("--model", help="The model to ask. [default: the server's first]")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Requests per second, at random times (Poisson)."
)
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Requests open at once, instead of a rate.")
@click.option("--requests", type=click.IntRange(1, 1_000_000), help=f"Requests in all. [default: {DEFAULT_REQUESTS}]")
@click.option(
    "--input-tokens", default="256", show_default=True, help="Tokens of prompts: a number or a range, 128:1024."
)
@click.option("--output-tokens", default="64", show_default=True, help="Tokens of answers: a number or a range.")
@click.option("--shared-tokens", type=click.IntRange(min=0), default=0, help="Tokens that all prompts begin with.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Lengths and times of a trace: Azure's CSV or Mooncake's JSON lines, plain or gzipped.",
)
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Factor by which a trace is sent faster."
)
@click.option("--ttft-target", type=float, metavar="MS", help="Goodput counts requests with at most this TTFT.")
@click.option("--tpot-target", type=float, metavar="MS", help="Goodput counts requests with at most this TPOT.")
@click.option("--e2e-target", type=float, metavar="MS", help="Goodput counts requests with at most this total time.")
@click.option("--completions", is_flag=True, help="Use /v1/completions instead of chats.")
@click.option("--end-early/--no-end-early", default=False, help="Let answers end before their planned length.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds for a request."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of lengths, times and texts.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report to this HTML file.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--allow-remote", is_flag=True, help="Allow a server that is not on this machine.")
@debug_option
def bench(url: str, api_key: str | None, **options: Any) -> None:
    """Load-test a server: send requests at a rate, at a concurrency or as a trace has them, and show latencies,
    throughput, errors and goodput. Ctrl-C ends the test and shows what was measured. Exit code 1: nothing was answered.
    """
    from penstock.cli.load_test.client import LoadTest, Target
    from penstock.cli.served_model import find

    remote = Remote(url, api_key)
    _check_address(remote.url, options["allow_remote"])
    if options["rate"] and options["concurrency"]:
        raise InvalidRequest("--rate and --concurrency exclude each other", param="rate")
    if options["trace"] and options["rate"]:
        raise InvalidRequest("a trace has its own times: --speed scales them, or use --concurrency", param="rate")
    model = find(remote, options["model"])
    target = Target(
        url=remote.url,
        model=model.name,
        headers=remote.headers,
        chat=not options["completions"],
        timeout_s=options["timeout"],
        ignore_eos=model.knows_sampling and not options["end_early"],
    )
    planned = _plan(options, model.context)
    test = LoadTest(target, planned, options["concurrency"] or (None if options["rate"] or options["trace"] else 8))
    interrupted = _run(test, quiet=options["as_json"])
    _show(test, options, remote.url, model.name, interrupted)
    sys.exit(0 if any(one.error is None for one in test.outcomes) else 1)


def _check_address(url: str, allowed: bool) -> None:
    host = urlsplit(url).hostname or ""
    try:
        here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    if not here and not allowed:
        raise InvalidRequest(
            f"{host} is not this machine: a load test of others' servers needs their consent and --allow-remote",
            param="server",
        )


def _plan(options: dict[str, Any], context: int | None) -> Any:
    from penstock.cli.load_test.workload import from_trace, read_trace, synthetic

    if options["trace"] is not None:
        rows = read_trace(options["trace"])
        longest = None if context is None else context - 64  # the template's tokens, and words of two
        return from_trace(
            rows, limit=options["requests"], speed=options["speed"], longest=longest, seed=options["seed"]
        )
    return synthetic(
        options["requests"] or DEFAULT_REQUESTS,
        lengths=options["input_tokens"],
        outputs=options["output_tokens"],
        rate=options["rate"],
        shared=options["shared_tokens"],
        seed=options["seed"],
    )


def _run(test: Any, *, quiet: bool) -> bool:
    """Whether it was interrupted."""
    import asyncio

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("requests", total=test.total)

        def show() -> None:
            failed = sum(one.error is not None for one in test.outcomes)
            bar.update(task, completed=len(test.outcomes), description=f"{test.open} open, {failed} failed")

        try:
            asyncio.run(test.run(show))
        except KeyboardInterrupt:
            return True
    return False


def _show(test: Any, options: dict[str, Any], url: str, model: str, interrupted: bool) -> None:
    import msgspec
    from rich.console import Console

    from penstock.cli.load_test.html_report import html_report
    from penstock.cli.load_test.measures import summary
    from penstock.cli.load_test.report import print_report

    given = {name: options[f"{name}_target"] for name in ("ttft", "tpot", "e2e")}
    found = summary(test.outcomes, test.seconds, {name: limit for name, limit in given.items() if limit is not None})
    found |= {"server": url, "model": model, "planned": test.total, "interrupted": interrupted}
    if options["html"] is not None:
        details = {name: str(value) for name, value in options.items() if value not in (None, False)}
        page = html_report(f"Load test of {model}", {"server": url, "model": model, **details}, found, test.outcomes)
        try:
            options["html"].write_text(page, encoding="utf-8")
        except OSError as error:
            raise PenstockError(f"cannot write {options['html']}: {error.strerror}", param="html") from None
    if options["as_json"]:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    if interrupted:
        click.echo(f"interrupted: {len(test.outcomes)} of {test.total} requests had ended", err=True)
    console = Console(highlight=False)
    console.print(f"{model} of {url}")
    print_report(console, found, test.outcomes)
