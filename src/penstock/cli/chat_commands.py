"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import click
import msgspec

from penstock.cli.served_model import ServedModel, cards
from penstock.errors import InvalidRequest
from penstock.flow import Message, SamplingParams
from penstock.settings.data_dir import data_folder
from penstock.system import typed

if TYPE_CHECKING:
    from penstock.cli.chat import Chat

HINT = '/help lists the commands; """ begins and ends a message of several lines; Ctrl-D leaves.'
HELP = {
    "/set [NAME [VALUE]]": "show or change sampling parameters: /set temperature 0.7; `default` takes one back",
    "/system [TEXT]": "set the system message, or remove it",
    "/model [NAME]": "go on with another model, or list those there are",
    "/save NAME": "save the conversation; NAME may be a path that ends with .json",
    "/load [NAME]": "load a conversation, or list those that were saved",
    "/reset": "forget the conversation",
    "/exit": "leave (so does Ctrl-D)",
}
PARAMETERS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "max_tokens", "seed", "stop",
)  # fmt: skip


class SavedChat(msgspec.Struct, omit_defaults=True):
    """The content of a saved conversation."""

    messages: list[Message]
    model: str | None = None
    system: str | None = None
    parameters: dict[str, Any] = {}


def run_command(chat: Chat, line: str) -> bool:
    """Whether the conversation goes on."""
    name, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    match name:
        case "/exit" | "/quit" | "/bye":
            return False
        case "/reset" | "/clear":
            chat.turns.clear()
        case "/system":
            chat.system = rest or None
        case "/set":
            _set(chat, *rest.split(maxsplit=1))
        case "/model":
            _list_models(chat) if not rest else chat.use(rest)
        case "/save":
            _save(chat, rest)
        case "/load":
            _load(chat, rest)
        case _:
            _help()
    return True


def _help() -> None:
    width = max(map(len, HELP))
    for command, what in HELP.items():
        click.echo(f"  {command:{width}}  {what}", err=True)


def _set(chat: Chat, name: str | None = None, value: str | None = None) -> None:
    if name is None:
        params = chat.params
        for known in PARAMETERS:
            mark = "  (set here)" if known in chat.changed else ""
            click.echo(f"  {known:20} {_shown(getattr(params, known))}{mark}", err=True)
        return
    if name not in PARAMETERS:
        raise InvalidRequest(f"{name} is not a parameter; there are {', '.join(PARAMETERS)}", param=name)
    if value is None:
        click.echo(f"  {name:20} {_shown(getattr(chat.params, name))}", err=True)
        return
    before = dict(chat.changed)
    chat.changed.pop(name, None)
    if value != "default":
        chat.changed[name] = _parse(name, value)
    try:
        _ = chat.params
    except InvalidRequest:
        chat.changed = before
        raise


def _parse(name: str, value: str) -> Any:
    if name == "stop":
        return (value.encode().decode("unicode_escape"),)
    try:
        return typed.convert(value, get_type_hints(SamplingParams)[name], strict=False)
    except msgspec.ValidationError:
        raise InvalidRequest(f"{name}: {value!r} is not a number", param=name) from None


def _shown(value: Any) -> str:
    return "none" if value in (None, ()) else repr(value)


def _list_models(chat: Chat) -> None:
    if isinstance(chat.model, ServedModel):
        names = [card["id"] for card in cards(chat.model.remote)]
    else:
        from penstock.store.listing import known_models

        names = [model.name for model in known_models() if model.pulled]
    for name in names:
        click.echo(f"  {name}{'  (in use)' if name == chat.model.name else ''}", err=True)


def _file(name: str) -> Path:
    """A path, or the file of a name in the data folder."""
    if name.endswith(".json") or "/" in name:
        return Path(name).expanduser()
    return data_folder(None) / "chats" / f"{name}.json"


def _save(chat: Chat, name: str) -> None:
    if not name:
        raise InvalidRequest("/save needs a name or the path of a .json file", param="save")
    saved = SavedChat(chat.turns, chat.model.name, chat.system, chat.changed)
    file = _file(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(saved)))
    except OSError as error:
        raise InvalidRequest(f"cannot save {file}: {error.strerror}", param="save") from None
    click.echo(f"saved {len(chat.turns)} messages to {file}", err=True)


def _load(chat: Chat, name: str) -> None:
    if not name:
        names = sorted(path.stem for path in (data_folder(None) / "chats").glob("*.json"))
        click.echo("  " + (", ".join(names) or "none saved yet"), err=True)
        return
    file = _file(name)
    try:
        saved = typed.decode_json(file.read_bytes(), SavedChat)
    except OSError as error:
        raise InvalidRequest(f"cannot load {file}: {error.strerror}", param="load") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{file} is not a saved conversation: {error}", param="load") from None
    if not all(isinstance(turn.get("role"), str) and "content" in turn for turn in saved.messages):
        raise InvalidRequest(f"{file} is not a saved conversation: a message lacks role or content", param="load")
    if unknown := saved.parameters.keys() - set(PARAMETERS):
        raise InvalidRequest(f"{file}: {unknown.pop()} is not a parameter", param="load")
    chat.turns, chat.system, chat.changed = list(saved.messages), saved.system, dict(saved.parameters)
    click.echo(f"loaded {len(chat.turns)} messages; going on with {chat.model.name}", err=True)
