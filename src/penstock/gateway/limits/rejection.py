"""From a limit that a request does not fit into to the error that its client gets."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import BudgetExhausted, InvalidRequest, RateLimited
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.headers import duration
from penstock.gateway.limits.meter import Obstacle, Owner
from penstock.gateway.limits.reservation import Charge

BUDGETS = {"microusd_per_day": "daily", "microusd_per_month": "monthly"}


def check_possible(identity: Identity, charge: Charge) -> None:
    """Raises InvalidRequest for a request that exceeds a limit all by itself: it can never fit."""
    owners: tuple[tuple[Owner, str, Limits], ...] = (
        ("key", identity.key, identity.key_limits),
        ("tenant", identity.tenant, identity.tenant_limits),
    )
    for owner, name, limits in owners:
        most = limits.tokens_per_minute
        if most is not None and charge.tokens > most:
            raise _too_many_tokens(owner, name, most, charge)
        for limit, period in BUDGETS.items():
            budget = getattr(limits, limit)
            if budget is not None and charge.microusd > budget:
                raise InvalidRequest(
                    f"this request may cost up to ${charge.microusd / 1e6:.6f}, but the {period} budget of "
                    f"{owner} {name!r} is ${budget / 1e6:.6f}: it can never fit; lower max_tokens",
                    param="max_tokens",
                )
        for limit in ("requests_per_minute", "concurrent_requests"):
            if getattr(limits, limit) == 0:
                raise InvalidRequest(f"{limit} of {owner} {name!r} is 0: it can make no requests")


def _too_many_tokens(owner: Owner, name: str, most: int, charge: Charge) -> InvalidRequest:
    output = charge.tokens - charge.prompt_tokens
    says = f"tokens_per_minute of {owner} {name!r} is {most}: it can never fit"
    if charge.prompt_tokens >= most:
        return InvalidRequest(f"the prompt alone has {charge.prompt_tokens} tokens, but {says}; shorten the prompt")
    return InvalidRequest(
        f"this request may use up to {charge.tokens} tokens (prompt {charge.prompt_tokens}, output {output}), but "
        f"{says}; lower max_tokens so that all output has at most {most - charge.prompt_tokens} tokens",
        param="max_tokens",
    )


def rejection(identity: Identity, obstacles: Sequence[Obstacle], headers: dict[str, str]) -> RateLimited:
    """The error of the obstacle that lasts longest. `headers` are those of the limits per minute."""
    worst = max(obstacles, key=lambda one: one.wait_us)
    name = identity.key if worst.owner == "key" else identity.tenant
    who = f"{worst.owner} {name!r}"
    when = f"try again in {duration(worst.wait_us)}"
    error: RateLimited
    if worst.limit in BUDGETS:
        most, used, asked = (f"${amount / 1e6:.6f}" for amount in (worst.most, worst.used, worst.asked))
        field = worst.limit.removeprefix("micro")  # as operators set it
        open_requests = ", part of it reserved by open requests" if worst.open else ""
        message = (
            f"the {BUDGETS[worst.limit]} budget of {who} is exhausted ({field}): limit {most}, used {used}"
            f"{open_requests}, requested up to {asked}; {when}"
        )
        error = BudgetExhausted(message, owner=worst.owner, limit=worst.limit)
    else:
        message = (
            f"rate limit reached for {who} ({worst.limit}): limit {worst.most}, used {worst.used}, requested "
            f"{worst.asked}; {when}"
        )
        error = RateLimited(message, owner=worst.owner, limit=worst.limit)
    error.retry_after_s = worst.wait_us / 1e6
    error.headers = {"retry-after-ms": str(-(-worst.wait_us // 1000)), **headers}
    return error
