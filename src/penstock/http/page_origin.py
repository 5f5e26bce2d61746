"""Which web pages may call routes that need no JSON body.

A browser asks the server before it sends JSON of another origin's page (`middleware.cors`). Forms, and POST requests
without a body, it sends without asking: the page cannot read the answer, but the request has had its effect.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from penstock.errors import OriginNotAllowed
from penstock.settings import Settings


def check_page_origin(request: Request, settings: Settings) -> None:
    """Raises OriginNotAllowed for pages of other origins. A key, which browsers do not add by themselves, protects as
    well."""
    origin, allowed = request.headers.get("origin"), settings.serve.origins
    if settings.needs_key or origin is None or "*" in allowed or origin.lower() in allowed:
        return
    if request.headers.get("sec-fetch-site") == "same-origin":  # said by the browser, where a proxy changed the host
        return
    if _host(origin) != request.headers.get("host", "").lower():
        called = f"{request.method} {request.url.path}"
        raise OriginNotAllowed(f"pages of {origin[:253]} may not call {called}: see --allow-origin")


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # "http://["
        return None
