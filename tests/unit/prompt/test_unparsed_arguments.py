"""Placeholders for arguments that are no JSON; how templates show them is in `test_dialect.py`."""

import re

import pytest

from penstock.errors import InvalidRequest
from penstock.prompt.unparsed_arguments import RawArguments


def test_where_there_are_none_no_pattern_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be another one for each request, which takes longer than the rest of the rendering."""
    for name in ("findall", "sub"):
        monkeypatch.setattr(re, name, None)
    assert RawArguments().restore("Hi!") == "Hi!"


def test_a_template_cannot_multiply_them() -> None:
    raw = RawArguments()
    held = raw.hold("cut" * 1000)
    assert raw.restore(held * 8) == "cut" * 8000
    with pytest.raises(InvalidRequest, match="too often"):
        raw.restore(held * 9)
