"""Which Host headers the server answers to.

A page loaded from evil.example can later have that name resolve to this machine (DNS rebinding): the browser then takes
the server for the page's own origin, and lets the page read its responses. The Host header still says evil.example, so
a server without keys answers only to names that an outsider cannot point here.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import HostNotAllowed, InvalidRequest
from penstock.http.error_response import error_response
from penstock.settings import LOOPBACK, ServeSettings, Settings

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::\d{1,5})?", re.IGNORECASE)


class HostMiddleware:
    """Requires one Host header in every HTTP/1.1 request, and an allowed one where no key protects the server."""

    def __init__(self, app: ASGIApp, settings: Settings, *, any_host_paths: frozenset[str]) -> None:
        """`any_host_paths` are answered under any name: health probes, which reveal nothing."""
        self.app = app
        self.any_host_paths = any_host_paths
        self.allowed = None if settings.needs_key and not settings.serve.hosts else allowed_hosts(settings.serve)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except (HostNotAllowed, InvalidRequest) as error:
                await error_response(error, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        values = [value for key, value in scope["headers"] if key == b"host"]
        if len(values) > 1:
            raise InvalidRequest("the request has more than one Host header")
        if not values:
            if scope["http_version"] != "1.0":
                raise InvalidRequest("the request has no Host header, which HTTP/1.1 requires")
            return  # HTTP/1.0 has none, and no browser speaks it
        match = _HOST.fullmatch(values[0].decode("latin-1"))
        if match is None:
            raise InvalidRequest("the Host header is not a host name or an address with an optional port")
        if self.allowed is None or scope["path"] in self.any_host_paths or is_allowed(match[1], self.allowed):
            return
        raise HostNotAllowed(
            f"this server does not answer to the name {match[1][:253]}: use localhost or an IP address, or start the "
            f"server with --allow-host {match[1][:253]} (setting allow_host) or with an API key"
        )


def allowed_hosts(settings: ServeSettings) -> frozenset[str]:
    """Beside loopback names and IP addresses: the name that is bound, those configured, and the machine's own name if
    the server can be reached from elsewhere."""
    names = {settings.host.lower(), *settings.hosts}
    if settings.host not in LOOPBACK:
        own = socket.gethostname().lower()
        names |= {own, own.partition(".")[0], f"{own.partition('.')[0]}.local"}
    return frozenset(names)


def is_allowed(host: str, names: frozenset[str]) -> bool:
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost") or _is_address(name.strip("[]")):
        return True
    return name in names or "*" in names or any(f"*.{parent}" in names for parent in _parent_domains(name))


def _is_address(text: str) -> bool:
    """DNS cannot redirect an address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _parent_domains(name: str) -> list[str]:
    labels = name.split(".")
    return [".".join(labels[first:]) for first in range(1, len(labels))]
