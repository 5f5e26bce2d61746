"""penstock run: one prompt, one answer (or n)."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from penstock.cli.options import (
    ENGINE,
    constraint_of,
    constraint_options,
    sampling_options,
    sampling_params,
    settings_options,
)
from penstock.cli.session import Shower, open_model, recommended_params
from penstock.errors import InvalidRequest
from penstock.flow import Completion, Message, SamplingParams


@click.command()
@click.argument("prompt")
@click.option("--system", help="System message before the prompt.")
@click.option("--raw", is_flag=True, help="Continue the prompt itself, without the chat template.")
@click.option("--n", type=int, default=1, help="Number of answers.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@constraint_options
@sampling_options
@settings_options(*ENGINE)
def run(prompt: str, system: str | None, raw: bool, n: int, as_json: bool, **values: Any) -> None:
    """Answer PROMPT ("-" reads it from standard input)."""
    text = _text_of(prompt)
    if not text.strip():
        raise InvalidRequest("the prompt is empty", param="prompt")
    if raw and system:
        raise InvalidRequest("--system cannot be combined with --raw: a raw prompt has no messages", param="system")
    constraint = constraint_of(values)
    sampling_params({}, dict(values), n=n)  # errors come before anything is loaded
    with open_model(values, constraint) as llm:
        params = sampling_params(
            recommended_params(llm, SamplingParams().max_tokens), values, n=n, constraint=constraint
        )
        question = text if raw or llm.pipeline.template is None else _conversation(system, text)
        if as_json or n > 1:
            result = llm.chat(question, params) if isinstance(question, list) else llm.generate(question, params)
            _print_result(result, as_json)
        else:
            show = Shower()
            for chunk in llm.stream(question, params):
                show(chunk)
            click.echo()


def _text_of(prompt: str) -> str:
    if prompt == "-" and sys.stdin is None:
        raise InvalidRequest("standard input is closed: there is no prompt to read", param="prompt")
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        text.encode()  # by the locale, other bytes fail to be read or come as halves of surrogate pairs
    except UnicodeError:
        raise InvalidRequest("the prompt is not UTF-8 text", param="prompt") from None
    return text


def _conversation(system: str | None, text: str) -> list[Message]:
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": text}]


def _print_result(result: Completion, as_json: bool) -> None:
    if not as_json:
        for choice in result.choices:
            click.echo(f"[{choice.index}] {choice.text}")
        return
    report = msgspec.to_builtins(result)
    for choice, shown in zip(result.choices, report["choices"], strict=True):
        timings = choice.timings
        shown["timings"] = timings and {
            "queue_s": timings.queue_s,
            "prefill_s": timings.prefill_s,
            "first_token_s": timings.first_token_s,
            "decode_s": timings.decode_s,
            "per_token_s": choice.per_token_s,
            "preemptions": timings.preemptions,
            "drafted_tokens": timings.drafted,
            "accepted_tokens": timings.accepted,
        }
    click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
