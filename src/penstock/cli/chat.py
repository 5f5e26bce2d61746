"""penstock chat: a conversation in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

import click

from penstock.cli.answer_display import Stopwatch, display
from penstock.cli.chat_commands import HINT, run_command
from penstock.cli.chat_input import read_message, saved_line_history
from penstock.cli.options import ENGINE, sampling_options, sampling_params, settings_options
from penstock.cli.session import TalkingModel, open_model, recommended_params, server_options
from penstock.errors import ContextOverflow, InvalidRequest, PenstockError
from penstock.flow import Message, SamplingParams

Open = Callable[[str | None], AbstractContextManager[TalkingModel]]  # a model by its name; None: as the options say
# The sampling parameters: a model's recommendations, then the command's options, then what /set has changed
ParamsOf = Callable[[dict[str, Any], dict[str, Any]], SamplingParams]


@click.command()
@click.option("--system", help="System message of the conversation.")
@click.option("--plain", is_flag=True, help="Show answers as they are, not as Markdown.")
@server_options
@sampling_options
@settings_options(*ENGINE)
def chat(system: str | None, plain: bool, **values: Any) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands.

    A Penstock server at the default address answers if it has the model (a line says so). Otherwise the model is
    loaded here.
    """
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed: chat reads messages from it")
    sampling_params({}, dict(values))
    chosen = {name: values[name] for name in ("server", "local", "api_key")}

    def open_by_name(name: str | None) -> AbstractContextManager[TalkingModel]:
        return open_model({**values, **chosen, **({} if name is None else {"model": name})})

    with ExitStack() as stack:

        def params_of(defaults: dict[str, Any], changed: dict[str, Any]) -> SamplingParams:
            return sampling_params(defaults, dict(values), **changed)

        conversation = Chat(open_by_name, stack, params_of, plain)
        conversation.system = system
        conversation.loop()


class Chat:
    def __init__(self, open_by_name: Open, stack: ExitStack, params_of: ParamsOf, plain: bool = False) -> None:
        """`stack` closes the model."""
        self._open, self._stack, self._params_of = open_by_name, stack, params_of
        self._plain = plain
        self.system: str | None = None
        self.turns: list[Message] = []
        self.changed: dict[str, Any] = {}  # by /set
        self.use(None)

    def use(self, name: str | None) -> None:
        """Go on with another model; the conversation stays. If it cannot be opened, so does the model before."""
        with ExitStack() as opening:
            model = opening.enter_context(self._open(name))
            if not model.can_chat:
                raise InvalidRequest(f"{model.name} has no chat template; try `penstock run --raw`", param="model")
            opened = opening.pop_all()
        self._stack.close()
        self._stack.push(opened)
        self.model: TalkingModel = model

    @property
    def params(self) -> SamplingParams:
        return self._params_of(recommended_params(self.model, None), self.changed)

    def loop(self) -> None:
        click.echo(click.style(HINT, dim=True), err=True)
        with saved_line_history():
            while (message := read_message()) is not None:
                if not message.strip():
                    continue
                if message.startswith("/"):
                    if not self._command(message):
                        return
                else:
                    self.answer(message)

    def _command(self, line: str) -> bool:
        """Whether the conversation goes on."""
        try:
            return run_command(self, line)
        except PenstockError as error:
            click.echo(f"error: {error.message}", err=True)
        return True

    def answer(self, message: str) -> None:
        """One turn. It joins the history if it has an answer, even one that was stopped halfway."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        question: Message = {"role": "user", "content": message}
        text, watch, stopped = "", Stopwatch(), False
        try:
            with interruptible(self.model.interrupts == "now") as interrupted, display(self._plain) as show:
                for chunk in self.model.stream([*system, *self.turns, question], self.params):
                    text += chunk.text
                    watch.count(chunk)
                    show(chunk)
                    if interrupted():
                        break
            stopped = interrupted()
        except KeyboardInterrupt:
            stopped = True
        except ContextOverflow:
            click.echo("the conversation fills the context: /reset starts a new one", err=True)
            return
        except PenstockError as error:
            click.echo(f"error: {error.message}", err=True)
            return
        watch.tokens = self.model.output_tokens or watch.tokens
        click.echo(click.style(" [stopped]", dim=True) if stopped else "")
        if sys.stderr.isatty() and (line := watch.line()):
            click.echo(click.style(line, dim=True), err=True)
        if text:
            self.turns += [question, {"role": "assistant", "content": text}]


@contextmanager
def interruptible(now: bool) -> Iterator[Callable[[], bool]]:
    """Ctrl-C inside the block sets a flag, which is checked between two chunks: no step of an engine in this process is
    interrupted. With `now`, it raises KeyboardInterrupt: a server may be silent for long."""
    pressed = []
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(True)
        if now:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
