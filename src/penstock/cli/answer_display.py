"""Shows an answer as it streams: plain where it is piped, Markdown in a terminal."""

from __future__ import annotations

import re
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

from penstock.flow import Chunk

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

# What a terminal acts on: escape sequences and other control characters, but for tab and newline
CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]", re.DOTALL)
FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)


class PlainDisplay:
    """Reasoning is dim and on standard error, so that a pipe receives the answer only."""

    def __init__(self) -> None:
        self.thinking = False
        self._safe = sys.stdout.isatty()

    def __enter__(self) -> PlainDisplay:
        return self

    def __call__(self, chunk: Chunk) -> None:
        if chunk.reasoning:
            click.echo(click.style(CONTROLS.sub("", chunk.reasoning), dim=True), nl=False, err=True)
            self.thinking = True
        if chunk.text:
            if self.thinking:
                click.echo("\n", err=True)
            click.echo(CONTROLS.sub("", chunk.text) if self._safe else chunk.text, nl=False)
            self.thinking = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class MarkdownDisplay:
    """Finished blocks (paragraphs, lists, code) are printed once; the last one is drawn anew as it grows."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(highlight=False)
        self._live: Live = Live(console=self._console, transient=True, refresh_per_second=12, auto_refresh=False)
        self._text = ""  # of the last block
        self._thinking = False
        self._drawn = 0.0

    def __enter__(self) -> MarkdownDisplay:
        return self

    def __call__(self, chunk: Chunk) -> None:
        if chunk.reasoning:
            self._console.out(CONTROLS.sub("", chunk.reasoning), style="dim", end="", highlight=False)
            self._thinking = True
        if not chunk.text:
            return
        if self._thinking:
            self._console.print("\n")
            self._thinking = False
        self._live.start()
        self._text += CONTROLS.sub("", chunk.text)
        done, self._text = finished_blocks(self._text)
        if done:
            self._print(done)
        if time.monotonic() - self._drawn > 0.08:
            self._draw()

    def _draw(self) -> None:
        from rich.markdown import Markdown
        from rich.text import Text

        self._drawn = time.monotonic()
        room = max(3, self._console.height - 3)
        lines = self._text.splitlines()
        tall = sum(1 + len(line) // max(1, self._console.width) for line in lines) > room
        self._live.update(Text("\n".join(lines[-room // 2 :])) if tall else Markdown(self._text), refresh=True)

    def _print(self, text: str) -> None:
        from rich.markdown import Markdown
        from rich.text import Text

        self._live.update(Text(""), refresh=True)
        self._console.print(Markdown(text))
        self._console.print()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from rich.markdown import Markdown

        if self._live.is_started:
            self._live.stop()
        if self._text.strip():
            self._console.print(Markdown(self._text))


def finished_blocks(text: str) -> tuple[str, str]:
    """The blocks that end with an empty line, outside code fences and lists, and the rest."""
    end = 0
    for gap in re.finditer(r"\n[ \t]*\n+", text):
        before, after = text[end : gap.start()], text[gap.end() : gap.end() + 1]
        inside_code = len(FENCE.findall(before)) % 2 == 1
        list_goes_on = _is_list(before) and (not after or after in " \t*-+0123456789")
        if not inside_code and not list_goes_on:
            end = gap.end()
    return text[:end].rstrip(), text[end:]


def _is_list(block: str) -> bool:
    return re.match(r"\s*(?:[*+-]|\d+[.)]) ", block) is not None


def display(plain: bool) -> PlainDisplay | MarkdownDisplay:
    return PlainDisplay() if plain or not sys.stdout.isatty() else MarkdownDisplay()


class Stopwatch:
    """The time of an answer, and its tokens per second."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._first: float | None = None
        self.tokens = 0

    def count(self, chunk: Chunk) -> None:
        self._first = self._first or time.monotonic()
        self.tokens += len(chunk.tokens)

    def line(self) -> str:
        ended = time.monotonic()
        if self._first is None or not self.tokens:
            return ""
        rate = f", {(self.tokens - 1) / (ended - self._first):.0f} tok/s" if self.tokens > 1 else ""
        return f"{self.tokens} tokens{rate}, first after {(self._first - self._begun) * 1000:.0f} ms"
