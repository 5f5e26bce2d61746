"""Placeholders for arguments that are no JSON; how templates show them is in `test_dialect.py`."""

import pytest

from penstock.errors import InvalidRequest
from penstock.prompt.raw_arguments import RawArguments


def test_a_template_cannot_multiply_them() -> None:
    raw = RawArguments()
    held = raw.hold("cut" * 1000)
    assert raw.restore(held * 8) == "cut" * 8000
    with pytest.raises(InvalidRequest, match="too often"):
        raw.restore(held * 9)
