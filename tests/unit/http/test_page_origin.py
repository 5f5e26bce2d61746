"""Which pages may call routes that browsers call without asking."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from penstock.errors import OriginNotAllowed
from penstock.http.page_origin import check_page_origin
from penstock.settings import load

SETTINGS = load({"allow_origin": "https://app.example"}, environ={})


def request(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/sleep", "query_string": b"", "headers": pairs})


@pytest.mark.parametrize(
    "headers",
    [
        {},  # no browser
        {"origin": "http://127.0.0.1:8000"},
        {"origin": "http://[::1]:8000", "host": "[::1]:8000"},
        {"origin": "HTTPS://APP.example"},
        {"origin": "https://llm.example", "sec_fetch_site": "same-origin"},  # behind a proxy that changes the host
    ],
)
def test_allowed(headers: dict[str, str]) -> None:
    check_page_origin(request(**{"host": "127.0.0.1:8000", **headers}), SETTINGS)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
        {"origin": "http://127.0.0.1:9000", "sec_fetch_site": "same-site"},
        {"origin": "null"},
        {"origin": "http://["},
    ],
)
def test_refused(headers: dict[str, str]) -> None:
    with pytest.raises(OriginNotAllowed, match="may not call POST /sleep"):
        check_page_origin(request(**{"host": "127.0.0.1:8000", **headers}), SETTINGS)


def test_a_server_with_keys_needs_no_origin() -> None:
    check_page_origin(request(host="127.0.0.1", origin="https://evil.example"), load({"api_key": "x" * 20}, environ={}))
