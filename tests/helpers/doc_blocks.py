"""Command blocks of README and docs/: each is marked, in a comment before it, as run by a test or not, and why."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from helpers.source_index import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
SHELL = ("bash", "sh", "console")
# What blocks without a language begin with
COMMANDS = (
    "curl ",
    "penstock ",
    "python ",
    "python3 ",
    "make ",
    "$ ",
    "pip ",
)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    mark: str | None

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def command_blocks() -> list[Block]:
    found = []
    for page in PAGES:
        content = page.read_text()
        for match in FENCE.finditer(content):
            language, text = match["language"], match["text"]
            if language in (*SHELL, "python") or (not language and text.startswith(COMMANDS)):
                line = content.count("\n", 0, match.start("text")) + 1
                found.append(Block(page, line, language, text, match["mark"]))
    return found


def shell_commands(block: Block) -> str:
    """What is typed: of a console, the lines behind a $ up to where their quotes are closed."""
    if block.language != "console":
        return block.text
    commands, begun = [], ""
    for line in block.text.splitlines():
        if begun or line.startswith("$ "):
            begun += line.removeprefix("$ ") + "\n" if not begun else line + "\n"
            try:
                shlex.split(begun)
            except ValueError:
                continue
            commands.append(begun)
            begun = ""
    return "".join(commands)
