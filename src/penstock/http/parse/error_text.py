"""How error messages name a field and show a value."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from penstock.http.parse.unions import BRANCH

MAX_SHOWN_NAME = 64  # characters of a client's name or value in an error message

FieldPath = tuple[str | int, ...]


def field_path(steps: Iterable[str | int]) -> str:
    """In OpenAI's notation: messages[0].content[1].text"""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(BRANCH):
            path += f".{shorten(step)}" if path else shorten(step)
    return path


def describe_value(value: Any) -> str:
    """A value as JSON; objects and lists only by their type."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shorten(json.dumps(value, ensure_ascii=False))


def shorten(text: str) -> str:
    """A short excerpt of what the client sent, as valid Unicode."""
    text = text if len(text) <= MAX_SHOWN_NAME else text[:MAX_SHOWN_NAME] + "…"
    return text.encode(errors="replace").decode()
