"""Arguments of past calls that are no JSON object, such as those of a call cut at the length limit: clients send them
back, and the prompt shows them to the letter.

Chat templates write arguments as JSON, which would put a string in quotes. So the template gets a placeholder, and the
text replaces what the template wrote of the placeholder, quotes included.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from penstock.errors import InvalidRequest

MAX_REPEATS = 8  # of each placeholder in the rendered text


class ArgumentPlaceholders:
    """The placeholders of one rendering."""

    def __init__(self) -> None:
        self._name = f"penstock-arguments-{secrets.token_hex(8)}"  # clients cannot guess it
        self._texts: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> str:
        """A placeholder for this text."""
        self._texts.append(text)
        return f"{self._name}-{len(self._texts) - 1}."

    def replace(self, rendered: str) -> str | None:
        """The rendered text with the texts in place of their placeholders; None if a placeholder is missing."""
        if not self._texts:  # as nearly always: saves compiling patterns that are used once
            return rendered
        seen = set()
        place = rf"{self._name}-(\d+)\."
        # The work meter has bounded the rendered text, not what it becomes here.
        if len(re.findall(place, rendered)) > MAX_REPEATS * len(self._texts):
            raise InvalidRequest("the chat template shows the arguments of a call too often", param="messages")

        def text(found: re.Match[str]) -> str:
            seen.add(int(found[1]))
            return self._texts[int(found[1])]

        replaced = re.sub(rf'"{place}"', text, rendered)
        replaced = re.sub(place, text, replaced)
        return replaced if len(seen) == len(self._texts) else None


def wrap_in_object(text: str) -> dict[str, Any]:
    """For templates that iterate over arguments by name."""
    return {"arguments": text}
