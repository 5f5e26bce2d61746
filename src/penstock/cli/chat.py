"""penstock chat: a conversation in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import click

from penstock.cli.options import ENGINE, sampling_options, sampling_params, settings_options
from penstock.cli.session import Shower, open_model, recommended_params
from penstock.errors import ContextOverflow, InvalidRequest
from penstock.flow import Message, SamplingParams
from penstock.offline import LLM

HELP = "/reset forgets the conversation, /system TEXT sets the system message, /exit leaves (so does Ctrl-D)."


@click.command()
@click.option("--system", help="System message of the conversation.")
@sampling_options
@settings_options(*ENGINE)
def chat(system: str | None, **values: Any) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D leaves."""
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed: chat needs one to read messages from")
    sampling_params({}, dict(values))
    with open_model(values) as llm:
        if llm.pipeline.template is None:
            raise InvalidRequest(f"{llm.model.name} has no chat template; try `penstock run --raw`", param="model")
        Chat(llm, sampling_params(recommended_params(llm, None), values), system).loop()


class Chat:
    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self.llm = llm
        self.params = params
        self.system = system
        self.turns: list[Message] = []

    def loop(self) -> None:
        with suppress(ImportError):
            import readline  # noqa: F401  (gives `input` history and line editing)
        click.echo(click.style(HELP, dim=True), err=True)
        while (line := _read_line()) is not None:
            match line.strip().split(maxsplit=1):
                case []:
                    continue
                case ["/exit" | "/quit"]:
                    return
                case ["/reset"]:
                    self.turns.clear()
                case ["/system", *text]:
                    self.system = text[0] if text else None
                case [command, *_] if command.startswith("/"):
                    click.echo(HELP, err=True)
                case _:
                    self.answer(line)

    def answer(self, line: str) -> None:
        """One turn. It joins the history if it has an answer, even one that was stopped halfway."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        question: Message = {"role": "user", "content": line}
        text, show = "", Shower()
        try:
            with interruptible() as interrupted:
                for chunk in self.llm.stream([*system, *self.turns, question], self.params):
                    text += chunk.text
                    show(chunk)
                    if interrupted():
                        break
        except ContextOverflow:
            click.echo("the conversation fills the context: /reset starts a new one", err=True)
            return
        except InvalidRequest as error:
            click.echo(f"error: {error.message}", err=True)
            return
        click.echo(click.style(" [stopped]", dim=True) if interrupted() else "")
        if text:
            self.turns += [question, {"role": "assistant", "content": text}]


@contextmanager
def interruptible() -> Iterator[Any]:
    """Ctrl-C inside the block sets a flag, which is checked between two chunks: no step is interrupted."""
    pressed = []
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(True)

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _read_line() -> str | None:
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            click.echo("\n(Ctrl-D leaves)", err=True)
