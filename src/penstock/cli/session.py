"""The model of a command: of a running server, or loaded here for the duration of the command, with progress on
standard error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import click
import msgspec

from penstock.cli.options import given_settings
from penstock.cli.progress import download_bar
from penstock.cli.remote import Remote
from penstock.cli.served_model import find, look_around
from penstock.cli.text import context_note
from penstock.errors import InvalidRequest
from penstock.flow import Chunk, Completion, Constraint, Message, SamplingParams
from penstock.offline import LLM
from penstock.settings import ENV_PREFIX

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline

Command = TypeVar("Command", bound=Callable[..., Any])
Prompt = str | list[Message]


class TalkingModel(Protocol):
    """What `run` and `chat` need of a model."""

    name: str
    can_chat: bool
    recommended: dict[str, Any]  # sampling
    max_tokens: int | None  # of an answer whose user names none
    interrupts: Literal["now", "between chunks"]  # where Ctrl-C may stop an answer
    output_tokens: int  # of the last answer; 0: count those of its chunks

    def stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[Chunk]: ...

    def complete(self, prompt: Prompt, params: SamplingParams) -> tuple[list[str], dict[str, Any]]:
        """The texts of all choices, and the whole result."""


def server_options(command: Command) -> Command:
    """--server, --local and --api-key: where the model is."""
    options = [
        click.option("--server", metavar="URL", help="Use this OpenAI-compatible server instead of loading a model."),
        click.option("--local", is_flag=True, help="Load the model here, even if a server runs."),
        click.option("--api-key", envvar="PENSTOCK_API_KEY", help="API key of the server, if it requires one."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


class LoadedModel:
    interrupts: Literal["now", "between chunks"] = "between chunks"
    output_tokens = 0

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._adapter = next(iter(llm.adapters), None)
        self.name = llm.model.name if self._adapter is None else f"{llm.model.name}@{self._adapter}"
        self.can_chat = llm.pipeline.template is not None
        self.recommended = llm.defaults
        self.max_tokens = llm.model.max_tokens

    def stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[Chunk]:
        return self._llm.stream(prompt, params, adapter=self._adapter)

    def complete(self, prompt: Prompt, params: SamplingParams) -> tuple[list[str], dict[str, Any]]:
        ask = self._llm.chat if isinstance(prompt, list) else self._llm.generate
        result = ask(prompt, params, adapter=self._adapter)  # type: ignore[arg-type]
        return [choice.text for choice in result.choices], _report(result)


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


def recommended_params(model: TalkingModel, max_tokens: int | None) -> dict[str, Any]:
    """What the model's authors recommend, for options that are not given; `max_tokens` if they do not name one."""
    return {"max_tokens": model.max_tokens or max_tokens, **model.recommended}


@contextmanager
def open_model(values: dict[str, Any], constraint: Constraint | None = None) -> Iterator[TalkingModel]:
    """`values` are those of server_options and settings_options; sampling values stay in it. `constraint`: of the
    coming request."""
    server, local, key = (values.pop(name) for name in ("server", "local", "api_key"))
    settings = {name: value for name, value in given_settings(values).items() if value is not None}
    if len(settings.get("adapters", ())) > 1:
        raise InvalidRequest("one adapter at a time can answer here: give --adapter once", param="adapters")
    name = settings.pop("model", None) or os.environ.get(f"{ENV_PREFIX}MODEL")
    if server is not None:
        if local or settings:
            wrong = "--local" if local else f"--{min(settings).replace('_', '-')}"
            raise InvalidRequest(f"--server excludes {wrong}: its model is loaded already", param="server")
        served = find(Remote(server, key), name)
        _note(f"{served.name} of {served.remote.url}")
        yield served
        return
    asks_for_engine = local or settings or values.get("config") is not None
    if not asks_for_engine and (near := look_around(name, key)) is not None:
        _note(f"{near.name} of the server at {near.remote.url} (--local loads it here)")
        yield near
        return
    with _load(values, constraint) as llm:
        yield LoadedModel(llm)


@contextmanager
def _load(values: dict[str, Any], constraint: Constraint | None) -> Iterator[LLM]:
    started = time.monotonic()
    with download_bar() as pulling:
        llm = _Checked(constraint, config=values.get("config"), pulling=pulling, **given_settings(values))
    with llm:
        if note := context_note(llm.facts["context"], llm.model.spec.context, llm.settings):
            _note(note)
        _note(f"{llm.model.name} ready in {time.monotonic() - started:.1f} s")
        yield llm


def _note(text: str) -> None:
    click.echo(click.style(text, dim=True), err=True)


def _report(result: Completion) -> dict[str, Any]:
    report: dict[str, Any] = msgspec.to_builtins(result)
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
    return report
