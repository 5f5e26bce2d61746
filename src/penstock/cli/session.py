"""A model, loaded for the duration of a command, with progress on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import given_settings
from penstock.cli.progress import download_bar
from penstock.cli.text import context_note
from penstock.flow import Chunk, Constraint
from penstock.offline import LLM

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline


class Shower:
    """Prints one answer as it streams: reasoning dim and on standard error, so that a pipe receives the answer only."""

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


class _Checked(LLM):
    """Rejects a constraint that cannot be compiled before the weights are loaded."""

    def __init__(self, constraint: Constraint | None, **options: Any) -> None:
        self._constraint = constraint
        super().__init__(**options)

    def _before_load(self, pipeline: Callable[[], Pipeline]) -> None:
        if self._constraint is not None and (checker := pipeline().constraints) is not None:
            try:
                checker.check(self._constraint)
            except BaseException:
                pipeline().close()
                raise


def recommended_params(llm: LLM, max_tokens: int | None) -> dict[str, Any]:
    """What the model's authors recommend, for options that are not given; `max_tokens` if they do not name one."""
    return {"max_tokens": llm.model.max_tokens or max_tokens, **llm.defaults}


@contextmanager
def open_model(values: dict[str, Any], constraint: Constraint | None = None) -> Iterator[LLM]:
    """`values` are those of settings_options; sampling values stay in it. `constraint`: of the coming request."""
    config = values.get("config")
    settings = given_settings(values)
    started = time.monotonic()
    with download_bar() as pulling:
        llm = _Checked(constraint, config=config, pulling=pulling, **settings)
    with llm:
        if note := context_note(llm.facts["context"], llm.model.spec.context, llm.settings):
            click.echo(click.style(note, dim=True), err=True)
        click.echo(click.style(f"{llm.model.name} ready in {time.monotonic() - started:.1f} s", dim=True), err=True)
        yield llm
