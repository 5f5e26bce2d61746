"""A key's default and largest `max_tokens`."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.errors import InvalidRequest
from penstock.flow import Request
from penstock.gateway.keys.identity import Identity


def limit_output(request: Request, identity: Identity, server_default: int | None = None) -> Request:
    """The request with the key's default `max_tokens`. Raises InvalidRequest if it asks for more than the key may.
    `server_default` applies where the key has a largest value and no default."""
    largest = identity.max_tokens
    if request.task != "generate" or (largest is None and identity.default_max_tokens is None):
        return request
    params = request.params
    for name in ("max_tokens", "min_tokens"):
        asked = getattr(params, name)
        if largest is not None and asked is not None and asked > largest:
            raise InvalidRequest(f"{name} is {asked}, and this API key allows at most {largest}", param=name)
    if params.max_tokens is not None:
        return request
    default = identity.default_max_tokens or min(largest or 0, server_default or largest or 0)
    limit = max(default if largest is None else min(default, largest), params.min_tokens)
    return replace(request, params=replace(params, max_tokens=limit), fit_context=True)
