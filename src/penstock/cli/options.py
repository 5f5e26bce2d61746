"""Options that several commands share, derived from the settings and sampling parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, SamplingParams
from penstock.flow.params import MAX_TEMPERATURE
from penstock.settings import SECTIONS, Settings

ENGINE = ("model", "cache", "schedule", "engine")

Command = TypeVar("Command", bound=Callable[..., Any])


def debug_option(command: Command) -> Command:
    option = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
    return option(command)


def settings_options(*sections: str, but: Collection[str] = ()) -> Callable[[Command], Command]:
    """One option per setting of these sections (`but` some), None when absent, and --config for a settings file."""

    def decorate(command: Command) -> Command:
        for name, section in reversed(SECTIONS.items()):
            if section in sections and name not in but:
                default = getattr(getattr(Settings(), section), name)
                command = _option(name, _hints(section)[name], default)(command)
        config = click.option(
            "--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file of settings."
        )
        return debug_option(config(command))

    return decorate


def struct_options(kind: type[msgspec.Struct]) -> Callable[[Command], Command]:
    """One option per field of `kind` that has a default, None when absent."""

    def decorate(command: Command) -> Command:
        hints = get_type_hints(kind, include_extras=True)
        for field in reversed(msgspec.structs.fields(kind)):
            if field.default is not msgspec.NODEFAULT:
                command = _option(field.name, hints[field.name], field.default)(command)
        return command

    return decorate


def given_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The settings among a command's values. A repeatable option that is not given is absent."""
    return {name: None if values[name] == () else values[name] for name in SECTIONS if name in values}


def sampling_options(command: Command) -> Command:
    """The common sampling parameters. None when absent: the model's own defaults apply."""
    options = [
        click.option(
            "--max-tokens", type=int, help="Maximum tokens to generate (default: the model's, for catalogue models)."
        ),
        click.option("--temperature", type=float, help="Sampling temperature, 0 (greedy) to 2."),
        click.option(
            "--top-p", type=float, help="Nucleus sampling: keep the most likely tokens up to this total probability."
        ),
        click.option("--top-k", type=int, help="Keep the k most likely tokens."),
        click.option(
            "--min-p", type=float, help="Keep tokens with at least this probability, relative to the most likely one."
        ),
        click.option("--repetition-penalty", type=float, help="Penalty on tokens already seen; 1 is none."),
        click.option("--stop", multiple=True, help="Stop string: generation ends before it; may be repeated."),
        click.option("--seed", type=int, help="Seed for reproducible sampling."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def sampling_params(defaults: dict[str, Any], values: dict[str, Any], **extra: Any) -> SamplingParams:
    """Takes the sampling options out of a command's values."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "seed")
    given = {name: value for name in names if (value := values.pop(name)) not in (None, ())}
    params = SamplingParams(**{**defaults, **given, **extra})
    if params.temperature > MAX_TEMPERATURE:
        raise InvalidRequest(
            f"temperature must be in [0.0, {MAX_TEMPERATURE}], got {params.temperature}", param="temperature"
        )
    return params


def constraint_options(command: Command) -> Command:
    """Structured output; at most one of them."""
    options = [
        click.option(
            "--schema",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Generate JSON that matches the JSON Schema in this file.",
        ),
        click.option("--regex", help="Generate text that this regular expression matches as a whole."),
        click.option(
            "--choice", multiple=True, help="Generate this text or one of the other choices; may be repeated."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def constraint_of(values: dict[str, Any]) -> Constraint | None:
    """Takes the constraint options out of a command's values."""
    schema, regex, choice = (values.pop(name) for name in ("schema", "regex", "choice"))
    if sum(map(bool, (schema, regex, choice))) > 1:
        raise InvalidRequest("--schema, --regex and --choice exclude each other", param="schema")
    if schema is not None:
        return Constraint("json_schema", _text_of(schema))
    if regex is not None:
        return Constraint.regex(regex)
    return Constraint.choice(choice) if choice else None


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"cannot read the schema {file}: {why}", param="schema") from None


@cache
def _hints(section: str) -> dict[str, Any]:
    """The annotations of a section's settings."""
    kind = next(field.type for field in msgspec.structs.fields(Settings) if field.name == section)
    return get_type_hints(kind, include_extras=True)


def _option(name: str, annotation: Any, default: Any) -> Callable[[Command], Command]:
    kind, meta = get_args(annotation)[0], annotation.__metadata__[-1]
    if get_origin(kind) is tuple:  # may be repeated, each time with one of them
        flag = name.removesuffix("s").replace("_", "-")
        return click.option(f"--{flag}", name, type=str, multiple=True, help=f"{meta.description} May be repeated.")
    flag = name.replace("_", "-")
    names = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
    note = "" if default is None else f" [default: {str(default).lower() if kind is bool else default}]"
    metavar = (meta.extra or {}).get("metavar")
    return click.option(
        names, name, type=_click_type(kind), default=None, metavar=metavar, help=f"{meta.description}{note}"
    )


def _click_type(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return click.Choice([str(choice) for choice in get_args(kind)])
    return kind
