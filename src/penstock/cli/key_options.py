"""Options of `penstock keys` and `penstock tenants`: the database, and the fields of keys and tenants."""

from __future__ import annotations

import contextlib
import getpass
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.options import debug_option
from penstock.settings import load

if TYPE_CHECKING:
    from penstock.gateway.keys.audit import Actor
    from penstock.gateway.keys.store import KeyStore

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic in new versions of click only

Command = TypeVar("Command", bound=Callable[..., Any])

NONE = "none"  # removes a limit
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class NumberOrNone(ParamType):
    """A number, or `none`."""

    name = "number|none"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == NONE:
            return NONE
        try:
            return self.kind(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {NONE}", param, ctx)


class Seconds(ParamType):
    """A duration such as 90s, 15m, 12h, 30d or 4w, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = re.fullmatch(r"(\d{1,9})([smhdw])", value) if isinstance(value, str) else None
        if found is None:
            self.fail(f"{value!r} is not a duration such as 15m, 12h or 30d", param, ctx)
        return int(found[1]) * _UNITS_S[found[2]]


class Moment(ParamType):
    """A duration from now, a date or time in UTC, or `none`; as Unix time."""

    name = "duration|date|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == NONE:
            return NONE
        if re.fullmatch(r"\d+[smhdw]", value):
            return int(time.time()) + int(Seconds().convert(value, param, ctx))
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither a duration such as 30d nor a date such as 2027-01-31", param, ctx)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def database_options(command: Command) -> Command:
    """--database, --data-dir and --config: where the server has its keys."""
    options = [
        click.option("--database", help="URL of the database. [default: tenants.db in data-dir]"),
        click.option("--data-dir", help="Folder of the server's data. [default: ~/.local/share/penstock]"),
        click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file of settings."),
    ]
    for option in reversed(options):
        command = option(command)
    return debug_option(command)


def limit_options(command: Command) -> Command:
    """None when absent."""
    options = [
        click.option("--requests-per-minute", type=NumberOrNone(int), help="Requests in any 60 seconds."),
        click.option("--tokens-per-minute", type=NumberOrNone(int), help="Tokens of prompts and answers in any 60 s."),
        click.option("--concurrent-requests", type=NumberOrNone(int), help="Requests at once."),
        click.option("--usd-per-day", type=NumberOrNone(float), help="Budget of a day (UTC)."),
        click.option("--usd-per-month", type=NumberOrNone(float), help="Budget of a month (UTC)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def key_field_options(command: Command) -> Command:
    options = [
        click.option("--name", help="What the key is for."),
        click.option(
            "--scope", "scopes", multiple=True, type=click.Choice(["inference", "observe", "admin"]),
            help="What the key may do; may be repeated. [default: inference]",
        ),
        click.option(
            "--model", "models", multiple=True,
            help="A model that requests may ask for; may be repeated, `none` allows all. [default: all]",
        ),
        click.option("--tier", help="Priority tier: interactive, standard or bulk. [default: standard]"),
        click.option("--default-max-tokens", type=NumberOrNone(int), help="max_tokens of requests without a limit."),
        click.option("--max-tokens", type=NumberOrNone(int), help="Largest max_tokens of a request."),
        click.option("--expires", type=Moment(), help="When it expires: 30d, 2027-01-31, or `none`."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return limit_options(command)


def given_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The fields among a command's values, as the store takes them."""
    given = {name: value for name, value in values.items() if value not in (None, ())}
    if "expires" in given:
        given["expires_at"] = given.pop("expires")
    if given.get("models") == (NONE,):
        given["models"] = NONE
    return {name: None if value == NONE and name != "name" else value for name, value in given.items()}


@contextlib.contextmanager
def open_store(values: dict[str, Any]) -> Iterator[KeyStore]:
    """Takes the database options out of a command's values."""
    from penstock.database.database import open_database
    from penstock.gateway.keys.store import KeyStore

    arguments = {name: values.pop(name) for name in ("database", "data_dir")}
    database = open_database(load(arguments, file=values.pop("config")).database_url)
    try:
        yield KeyStore(database)
    finally:
        database.close()


def actor() -> Actor:
    from penstock.gateway.keys.audit import Actor

    return Actor(f"cli:{getpass.getuser()}"[:128])
