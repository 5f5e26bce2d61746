"""`x-ratelimit-*` headers as OpenAI sends them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.gateway.limits.reservation import RateLimitState


def rate_limit_headers(requests: RateLimitState | None, tokens: RateLimitState | None) -> dict[str, str]:
    """Without those of a limit that does not exist."""
    headers = {}
    for what, state in (("requests", requests), ("tokens", tokens)):
        if state is not None:
            headers[f"x-ratelimit-limit-{what}"] = str(state.limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(state.remaining)
            headers[f"x-ratelimit-reset-{what}"] = duration(state.reset_us)
    return headers


def tightest(states: Iterable[RateLimitState | None]) -> RateLimitState | None:
    """That of key or tenant with the least left."""
    return min((state for state in states if state is not None), key=lambda state: state.remaining, default=None)


def duration(us: int) -> str:
    """ "6m0s", "1.25s", "20ms": as Go writes durations, in whole milliseconds, rounded up."""
    ms = -(-us // 1000)
    if ms < 1000:
        return f"{ms}ms"
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{ms:03}".rstrip("0").rstrip(".") if ms else str(seconds)
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{text}s"
