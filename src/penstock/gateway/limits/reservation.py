"""What a request may use, and the handle of what is reserved for it."""

from __future__ import annotations

import msgspec


class Charge(msgspec.Struct, frozen=True):
    """What a request may use at most, or has used."""

    tokens: int = 0  # prompt and output, of all choices
    microusd: int = 0
    prompt_tokens: int = 0  # of `tokens`; an error message says by it whether a smaller max_tokens helps


class RateLimitState(msgspec.Struct, frozen=True):
    """A limit per minute after a reservation."""

    limit: int
    remaining: int
    reset_us: int  # until all of it is back, if every open request ended now


class Reservation(msgspec.Struct):
    """What is reserved for an open request. `Limiter.settle` ends it."""

    id: str  # unique among all servers
    request: str  # the request's id
    tenant: str
    key: str
    charge: Charge
    requests: RateLimitState | None = None  # of key or tenant, whichever has less left; None: neither has a limit
    tokens: RateLimitState | None = None
    settled: bool = False
    at_us: int = 0  # when, by the clock of its limiter
