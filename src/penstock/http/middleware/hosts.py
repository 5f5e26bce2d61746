"""Which names a server answers to.

A page that a browser has loaded from evil.example may have that name point to this machine later (DNS rebinding): the
browser then takes the server for the page's own, and lets the page read its answers. The Host header still says
evil.example, so where no key is asked for, only names that nobody else can point here are served.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import HostNotAllowed, InvalidRequest
from penstock.http.error_response import failure
from penstock.settings import LOOPBACK, ServeSettings

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::\d{1,5})?", re.IGNORECASE)


class Hosts:
    """One Host header in every request of HTTP/1.1, and where no key protects the server, a name that is known."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, *, always: frozenset[str]) -> None:
        """`always`: paths that are served under any name: what probes ask for tells nothing."""
        self.app = app
        self.always = always
        self.names = None if settings.keys and not settings.hosts else served_names(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except (HostNotAllowed, InvalidRequest) as error:
                await failure(error, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        given = [value for key, value in scope["headers"] if key == b"host"]
        if len(given) > 1:
            raise InvalidRequest("the request has more than one Host header")
        if not given:
            if scope["http_version"] != "1.0":
                raise InvalidRequest("the request has no Host header, which HTTP/1.1 requires")
            return  # HTTP/1.0 has none, and no browser speaks it
        parts = _HOST.fullmatch(given[0].decode("latin-1"))
        if parts is None:
            raise InvalidRequest("the Host header is not a host name or an address with an optional port")
        if self.names is None or scope["path"] in self.always or is_served(parts[1], self.names):
            return
        raise HostNotAllowed(
            f"this server does not answer to the name {parts[1][:253]}: use localhost or an IP address, or start the "
            f"server with --allow-host {parts[1][:253]} (setting allow_host) or with an API key"
        )


def served_names(settings: ServeSettings) -> frozenset[str]:
    """Beside loopback names and addresses: the name bound to, those configured, and the machine's own if it can be
    reached from elsewhere."""
    names = {settings.host.lower(), *settings.hosts}
    if settings.host not in LOOPBACK:
        own = socket.gethostname().lower()
        names |= {own, own.partition(".")[0], f"{own.partition('.')[0]}.local"}
    return frozenset(names)


def is_served(host: str, names: frozenset[str]) -> bool:
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost") or _is_address(name.strip("[]")):
        return True
    return name in names or "*" in names or any(f"*.{rest}" in names for rest in _parents(name))


def _is_address(text: str) -> bool:
    """No name service decides where an address leads to."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _parents(name: str) -> list[str]:
    labels = name.split(".")
    return [".".join(labels[first:]) for first in range(1, len(labels))]
