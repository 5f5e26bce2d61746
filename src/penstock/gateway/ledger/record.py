"""A usage record: what one request of a client used."""

from __future__ import annotations

import msgspec


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One per request, whatever became of it. Tokens are those that are charged. Money is in micro-dollars."""

    request: str  # unique; the id of the request, or of the line of a batch
    t: float  # when it ended, Unix time
    tenant: str
    key: str
    model: str  # that answered
    replica: int
    input: int  # tokens of its prompts, cached ones included
    cached: int  # of those, found in the prefix cache
    output: int
    drafted: int = 0  # output tokens that speculation had drafted
    latency_s: float
    ttft_s: float | None  # None: there was no output
    microusd: int
    saved_microusd: int = 0  # what cached input would have cost more at the price of other input
    finish: str  # a FinishReason
    estimated: bool = False  # an upstream reported no usage: tokens are an estimate

    @property
    def tokens(self) -> int:
        """That count against limits."""
        return self.input + self.output
