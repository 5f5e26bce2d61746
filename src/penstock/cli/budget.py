"""penstock budget: what a prompt's parts take of the context, on the model's own tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.options import debug_option
from penstock.cli.progress import download_bar
from penstock.errors import InvalidRequest, ModelInvalid
from penstock.flow import Message, Request, SamplingParams
from penstock.flow.context import ContextTrace
from penstock.gateway.context.budget import DEFAULT_OUTPUT, Budget, Prompt
from penstock.gateway.context.budget import budget as share_out
from penstock.gateway.context.plan import plan_assembly, within
from penstock.settings import load
from penstock.settings.context import ContextSettings

if TYPE_CHECKING:
    from penstock.http.api.capacity_routes import BudgetRequest


@click.command()
@click.argument("model", required=False)
@click.option("--system", default="", help="The system message; @FILE reads it from a file.")
@click.option("--history", help="A JSON list of messages, as the API takes them, or @FILE.")
@click.option("--document", "documents", multiple=True, help="A text before the user's, or @FILE; several times.")
@click.option("--user", default="", help="The user's message, or @FILE.")
@click.option(
    "--output",
    type=click.IntRange(min=1),
    default=DEFAULT_OUTPUT,
    show_default=True,
    help="Tokens kept for the answer.",
)
@click.option("--context", type=click.IntRange(min=1), help="Tokens in all. [default: the model's]")
@click.option(
    "--assembly",
    metavar="JSON",
    help="Show what context assembly keeps, cuts and drops with these options, the `context` of a request, or @FILE; "
    "'{}' takes all defaults.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@debug_option
def budget(
    model: str | None,
    system: str,
    history: str | None,
    documents: tuple[str, ...],
    user: str,
    output: int,
    context: int | None,
    assembly: str | None,
    as_json: bool,
) -> None:
    """Count the tokens of a prompt's parts for MODEL, and what is left of its context. With --assembly, show what
    context assembly makes of them. Exit code 1: it does not fit."""
    from penstock import composition

    prompt = Prompt(
        system=_text(system, "system"),
        history=_history(history) if history else [],
        documents=[_text(document, "document") for document in documents],
        user=_text(user, "user"),
    )
    options = None if assembly is None else _assembly(assembly)
    settings = load({"model": model})
    with download_bar() as bar:
        pipeline = composition.pipeline(settings, composition.model(settings, bar))
    if pipeline.tokenizer is None:
        raise ModelInvalid(f"{pipeline.spec.name} has no tokenizer", param="model")

    def render(messages: list[Message]) -> list[int]:
        return pipeline.tokenize(Request(id="", params=SamplingParams(), messages=messages))

    made = share_out(
        prompt,
        tokenizer=pipeline.tokenizer,
        render=render if pipeline.template is not None else None,
        reserved_output=output,
        context=context or pipeline.context,
    )
    fits = made.fits
    if options is not None:
        trace = plan_assembly(prompt, within(options, context), pipeline, reserved_output=output)
        made, fits = msgspec.structs.replace(made, assembled=trace), True
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made)).decode())
    else:
        _show(made)
    sys.exit(0 if fits else 1)


def _show(made: Budget) -> None:
    table = Table("part", box=None, pad_edge=False, header_style="dim")
    for name in ("tokens", "share"):
        table.add_column(name, justify="right")
    rest = f"{-made.free_tokens:,} too many" if made.free_tokens < 0 else f"{made.free_tokens:,}"
    for part in made.parts:
        table.add_row(part.name, f"{part.tokens:,}", f"{part.tokens / made.context:.1%}")
    table.add_section()
    table.add_row("context", f"{made.context:,}", "100.0%")
    table.add_row("free", rest, "", style="bold" if made.fits else "bold red")
    console = Console(highlight=False)
    console.print(table)
    if made.assembled is not None:
        console.print()
        _show_trace(made.assembled, console)


def _show_trace(trace: ContextTrace, console: Console) -> None:
    table = Table("part", "result", box=None, pad_edge=False, header_style="dim")
    for name in ("tokens", "given"):
        table.add_column(name, justify="right")
    table.add_column("reason")
    for part in trace.parts:
        given = "" if part.given_tokens is None else f"{part.given_tokens:,}"
        name = escape(f"{part.kind} {part.id or ''}".strip())
        table.add_row(name, part.action, f"{part.tokens:,}", given, escape(part.why))
    table.add_section()
    table.add_row(
        "prompt", "", f"{trace.prompt_tokens:,}", "", f"{trace.reserved_output:,} reserved of {trace.limit:,}"
    )
    console.print(table)


def _text(given: str, param: str) -> str:
    """The text itself, or what is in the file that @ stands before."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"{param}: cannot read {given[1:]}: {why}", param=param) from None


def _assembly(given: str) -> ContextSettings:
    found = _parsed("assembly", given, "an object: the context of a request").assembly
    assert found is not None
    return found.settings()


def _history(given: str) -> list[Message]:
    from penstock.http.api.chat_messages import to_template

    return to_template(_parsed("history", given, "a list of messages").history or [])


def _parsed(field: str, given: str, expected: str) -> BudgetRequest:
    """A field of `POST /plan/budget`, with the errors that it has there."""
    from penstock.http.api.capacity_routes import BudgetRequest
    from penstock.http.parse.schema import parse

    try:
        value = msgspec.json.decode(_text(given, field))
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{field} must be JSON, {expected}: {error}", param=field) from None
    if not isinstance(value, dict | list):  # null would stand for no value
        raise InvalidRequest(f"{field} must be {expected}", param=field)
    return parse(BudgetRequest, msgspec.json.encode({field: value}))
