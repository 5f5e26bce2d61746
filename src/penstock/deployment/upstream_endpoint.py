"""Where an upstream is, and what it says about itself."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from penstock.settings.models import Capability

# Of an upstream that declares none: what most servers of OpenAI's API have.
DEFAULT_CAPABILITIES: frozenset[Capability] = frozenset(("chat", "tools", "structured_output"))


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAI-compatible server. Has the key: never shown or logged."""

    name: str  # of the model here, for errors
    url: str  # its API, such as https://api.example.com/v1
    model: str  # its name there
    key: str | None = None
    capabilities: frozenset[Capability] = DEFAULT_CAPABILITIES
    max_tokens_field: str = "max_tokens"  # newer models of OpenAI know `max_completion_tokens` only
    connect_s: float = 5.0
    first_token_s: float = 60.0  # from the request to the first output
    idle_s: float = 60.0  # between two pieces of output

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or self.url

    def path(self, route: str) -> str:
        return f"{self.url.rstrip('/')}/{route}"

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.url!r}, {self.model!r})"
