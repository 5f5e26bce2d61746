"""Arguments of past calls that are no JSON object, such as those of a call that was cut at the length limit: clients
send them back, and the model is shown the text as it is.

Chat templates write arguments as JSON, which would put a text between quotes. So a template is given a placeholder,
and what it wrote of that, quotes and all, is replaced by the text.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from penstock.errors import InvalidRequest

MAX_TIMES = 8  # that a template may show each of them


class RawArguments:
    """Those of one rendering."""

    def __init__(self) -> None:
        self._name = f"penstock-arguments-{secrets.token_hex(8)}"  # no client can write it
        self._texts: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._texts)

    def hold(self, text: str) -> str:
        """What stands for this text in the template's messages."""
        self._texts.append(text)
        return f"{self._name}-{len(self._texts) - 1}."

    def restore(self, rendered: str) -> str | None:
        """With the texts in their places; None if the template has shown none of one."""
        if not self._texts:  # as nearly always: spares the compilation of patterns that no other rendering has
            return rendered
        shown = set()
        place = rf"{self._name}-(\d+)\."
        if len(re.findall(place, rendered)) > MAX_TIMES * len(self._texts):  # nothing has bounded what would come of it
            raise InvalidRequest("the chat template shows the arguments of a call too often", param="messages")

        def text(found: re.Match[str]) -> str:
            shown.add(int(found[1]))
            return self._texts[int(found[1])]

        restored = re.sub(rf'"{place}"', text, rendered)
        restored = re.sub(place, text, restored)
        return restored if len(shown) == len(self._texts) else None


def as_mapping(text: str) -> dict[str, Any]:
    """For templates that go through arguments by name."""
    return {"arguments": text}
