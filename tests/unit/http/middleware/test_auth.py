"""The ways of giving a key."""

from __future__ import annotations

import pytest

from helpers import guarded_app


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer one")],
        [("authorization", "bearer  two ")],
        [("x-api-key", "one")],
        [("x-api-key", "two"), ("authorization", "Bearer wrong")],
        [("x-api-key", "wrong"), ("authorization", "Bearer one")],
    ],
)
def test_let_in(headers: list[tuple[str, str]]) -> None:
    assert guarded_app.request(*headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer")],
        [("authorization", "Bearer three")],
        [("authorization", "Basic one")],
        [("authorization", "one")],
        [("x-api-key", "")],
        [("x-api-key", "Bearer one")],
        [("x-api-key", "on")],
    ],
)
def test_kept_out(headers: list[tuple[str, str]]) -> None:
    assert guarded_app.request(*headers)[0] == 401
