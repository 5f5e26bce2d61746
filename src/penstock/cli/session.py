"""A loaded model for the length of a command, with its progress told on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from penstock.cli.options import given_settings
from penstock.cli.progress import download_bar
from penstock.flow import Chunk
from penstock.offline import LLM


class Shower:
    """Shows one answer as it comes: its reasoning dim and on standard error, so that what is piped on is the answer."""

    def __init__(self) -> None:
        self.thinking = False

    def __call__(self, chunk: Chunk) -> None:
        if chunk.reasoning:
            click.echo(click.style(chunk.reasoning, dim=True), nl=False, err=True)
            self.thinking = True
        if chunk.text:
            if self.thinking:
                click.echo("\n", err=True)
            click.echo(chunk.text, nl=False)
            self.thinking = False


@contextmanager
def open_model(values: dict[str, Any]) -> Iterator[LLM]:
    """`values` are those of settings_options; sampling values are left in it."""
    config = values.get("config")
    settings = given_settings(values)
    started = time.monotonic()
    with download_bar() as pulling:
        llm = LLM(config=config, pulling=pulling, **settings)
    with llm:
        click.echo(click.style(f"{llm.model.name} ready in {time.monotonic() - started:.1f} s", dim=True), err=True)
        yield llm
