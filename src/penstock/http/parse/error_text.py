"""How errors speak of what a client wrote: where it stands, and what it is, in short."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from penstock.http.parse.unions import BRANCH

MAX_SHOWN_NAME = 64  # of an unknown field, as errors repeat it

FieldPath = tuple[str | int, ...]


def field_path(place: Iterable[str | int]) -> str:
    """As OpenAI writes it: messages[0].content[1].text"""
    written = ""
    for step in place:
        if isinstance(step, int):
            written += f"[{step}]"
        elif not step.startswith(BRANCH):
            written += f".{shorten(step)}" if written else shorten(step)
    return written


def describe_value(value: Any) -> str:
    """A value, as JSON has it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shorten(json.dumps(value, ensure_ascii=False))


def shorten(text: str) -> str:
    """Fit to be sent back, whatever the client called it."""
    text = text if len(text) <= MAX_SHOWN_NAME else text[:MAX_SHOWN_NAME] + "…"
    return text.encode(errors="replace").decode()
