"""What pages of other origins may do."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import guarded_app
from helpers.guarded_app import PAGE


def preflight(origin: str, method: str = "POST", **kwargs: Any) -> tuple[int, dict[bytes, bytes]]:
    """A preflight request, as a browser sends it without a key for a page that sends what the SDKs send."""
    headers = [
        ("origin", origin),
        ("access-control-request-method", method),
        ("access-control-request-headers", "authorization,content-type,x-stainless-lang,anthropic-version"),
        ("access-control-request-private-network", "true"),
    ]
    return guarded_app.request(*headers, method="OPTIONS", **kwargs)


@pytest.mark.parametrize(("origins", "told"), [((PAGE,), PAGE.encode()), (("*",), b"*")])
def test_a_browser_is_told_that_a_page_may_call(origins: tuple[str, ...], told: bytes) -> None:
    code, headers = preflight(PAGE, origins=origins)

    assert (code, headers[b"access-control-allow-origin"]) == (200, told)
    assert b"anthropic-version" in headers[b"access-control-allow-headers"]
    assert headers[b"access-control-allow-private-network"] == b"true"
    assert {b"POST", b"DELETE"} <= set(headers[b"access-control-allow-methods"].split(b", "))

    code, headers = guarded_app.request(("origin", PAGE), ("x-api-key", "one"), origins=origins)
    assert (code, headers[b"access-control-allow-origin"]) == (200, told)
    assert {b"x-request-id", b"request-id", b"retry-after"} <= set(
        headers[b"access-control-expose-headers"].split(b", ")
    )
    assert b"access-control-allow-credentials" not in headers


def test_a_page_can_read_that_its_key_is_wrong() -> None:
    code, headers = guarded_app.request(("origin", PAGE), ("x-api-key", "three"))
    assert (code, headers[b"access-control-allow-origin"]) == (401, PAGE.encode())


def test_pages_of_other_origins_may_not() -> None:
    for origin in ("https://app.example:8443", "http://app.example", "https://other.example", "null"):
        code, headers = preflight(origin)
        assert code == 400
        assert b"access-control-allow-origin" not in headers
        assert b"access-control-allow-origin" not in guarded_app.request(("origin", origin), ("x-api-key", "one"))[1]
    assert preflight(PAGE, "PUT")[0] == 400


def test_without_the_setting_no_page_may_and_asking_needs_a_key() -> None:
    code, headers = preflight(PAGE, origins=())
    assert code == 401
    assert not [name for name in headers if name.startswith(b"access-control")]
