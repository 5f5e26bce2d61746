"""penstock run: one prompt, one answer (or n)."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from penstock.cli.answer_display import Stopwatch, display
from penstock.cli.options import (
    ENGINE,
    constraint_of,
    constraint_options,
    sampling_options,
    sampling_params,
    settings_options,
)
from penstock.cli.session import TalkingModel, open_model, recommended_params, server_options
from penstock.errors import InvalidRequest
from penstock.flow import Message, SamplingParams


@click.command()
@click.argument("prompt")
@click.option("--system", help="System message before the prompt.")
@click.option("--raw", is_flag=True, help="Continue the prompt itself, without the chat template.")
@click.option("--n", type=int, default=1, help="Number of answers.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.option("--plain", is_flag=True, help="Show the text as it is, not as Markdown.")
@server_options
@constraint_options
@sampling_options
@settings_options(*ENGINE)
def run(prompt: str, system: str | None, raw: bool, n: int, as_json: bool, plain: bool, **values: Any) -> None:
    """Answer PROMPT ("-" reads it from standard input).

    A Penstock server at the default address answers if it has the model (a line says so). Otherwise the model is
    loaded here.
    """
    text = _text_of(prompt)
    if not text.strip():
        raise InvalidRequest("the prompt is empty", param="prompt")
    if raw and system:
        raise InvalidRequest("--system cannot be combined with --raw: a raw prompt has no messages", param="system")
    constraint = constraint_of(values)
    sampling_params({}, dict(values), n=n)  # errors come before anything is loaded
    with open_model(values, constraint) as model:
        defaults = recommended_params(model, SamplingParams().max_tokens)
        params = sampling_params(defaults, values, n=n, constraint=constraint)
        question = text if raw or not model.can_chat else _conversation(system, text)
        if as_json or n > 1:
            texts, result = model.complete(question, params)
            _print_result(texts, result, as_json)
        else:
            _stream(model, question, params, plain=plain or constraint is not None)


def _stream(model: TalkingModel, question: str | list[Message], params: SamplingParams, *, plain: bool) -> None:
    watch = Stopwatch()
    with display(plain) as show:
        for chunk in model.stream(question, params):
            watch.count(chunk)
            show(chunk)
    watch.tokens = model.output_tokens or watch.tokens
    click.echo(nl=plain or not sys.stdout.isatty())
    if sys.stderr.isatty():
        click.echo(click.style(watch.line(), dim=True), err=True)


def _text_of(prompt: str) -> str:
    if prompt == "-" and sys.stdin is None:
        raise InvalidRequest('standard input is closed: the prompt "-" is read from it', param="prompt")
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        text.encode()  # by the locale, other bytes fail to be read or come as halves of surrogate pairs
    except UnicodeError:
        raise InvalidRequest("the prompt is not UTF-8 text", param="prompt") from None
    return text


def _conversation(system: str | None, text: str) -> list[Message]:
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": text}]


def _print_result(texts: list[str], result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
        return
    for index, text in enumerate(texts):
        click.echo(f"[{index}] {text}")
