"""Placeholders for arguments that are no JSON; how templates show them is in `test_published_templates.py`."""

import re

import pytest

from penstock.errors import InvalidRequest
from penstock.prompt.unparsed_arguments import ArgumentPlaceholders


def test_where_there_are_none_no_pattern_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be another one for each request, which takes longer than the rest of the rendering."""
    for name in ("findall", "sub"):
        monkeypatch.setattr(re, name, None)
    assert ArgumentPlaceholders().replace("Hi!") == "Hi!"


def test_a_template_cannot_multiply_them() -> None:
    placeholders = ArgumentPlaceholders()
    held = placeholders.add("cut" * 1000)
    assert placeholders.replace(held * 8) == "cut" * 8000
    with pytest.raises(InvalidRequest, match="too often"):
        placeholders.replace(held * 9)
