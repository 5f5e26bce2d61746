"""A deployment and a request as plain values: all that a routing policy sees."""

from __future__ import annotations

import msgspec

from penstock.deployment.protocol import Price

STALE_LOAD_S = 5.0  # a load report that is older says nothing about now; engines report every step while they work
DEFAULT_PREFILL_PER_S = 2000.0  # tokens: until a deployment has shown how fast it is


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What one request asks of a deployment."""

    prompt_tokens: int
    max_output: int | None = None  # None: no limit was given
    region: str | None = None  # preferred label
    ttft_target_s: float | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment at the moment of a decision."""

    name: str  # "smollm2/0"
    model: str
    blocked: str | None = None  # why it takes no request now: "restarting", "circuit open", …; None: it does
    queued_tokens: int = 0  # prompt tokens that wait ahead of this request
    recent_tokens: float = 0.0  # tokens given to it of late, decaying: what balances idle deployments
    load_age_s: float | None = None  # of the engine's last report; None: it gives none, and only own requests count
    busy: bool = False  # it has work of this server: a report is due
    cached_tokens: int | None = None  # the longest cached prefix of this prompt; None: not known
    prefix_trusted: bool = True  # False: predictions of cached prefixes were wrong of late
    prefill_per_s: float | None = None  # tokens; None: not measured yet
    wait_s: float = 0.0  # predicted, until it has a slot for another sequence
    base_ttft_s: float = 0.0  # what a prompt takes beside its computation: the way to an upstream
    price: Price | None = None
    region: str | None = None

    @property
    def stale_load(self) -> bool:
        """It has work, and its engine has not reported for a while."""
        return self.busy and self.load_age_s is not None and self.load_age_s > STALE_LOAD_S

    def uncached_tokens(self, demand: Demand) -> int:
        """Prompt tokens that it would have to compute."""
        cached = self.cached_tokens if self.prefix_trusted and self.cached_tokens else 0
        return max(demand.prompt_tokens - cached, 0)

    @property
    def wait_tokens(self) -> float:
        """Prompt tokens that it could compute while a sequence waits for a slot."""
        return self.wait_s * (self.prefill_per_s or DEFAULT_PREFILL_PER_S)

    def ttft_s(self, demand: Demand) -> float:
        """Predicted time to the first token."""
        tokens = self.queued_tokens + self.wait_tokens + self.uncached_tokens(demand)
        return self.base_ttft_s + tokens / (self.prefill_per_s or DEFAULT_PREFILL_PER_S)

    def cost(self, demand: Demand) -> float:
        """Predicted cost of the request, in US dollars."""
        if self.price is None:
            return 0.0
        uncached = self.uncached_tokens(demand)
        cached = demand.prompt_tokens - uncached
        rate = self.price.input if self.price.cached_input is None else self.price.cached_input
        output = self.price.output * (demand.max_output or 0)
        return (self.price.input * uncached + rate * cached + output) / 1e6
