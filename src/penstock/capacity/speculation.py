"""The gain of speculative decoding.

Each of k draft tokens is accepted with probability a if all before it were, so the first i are accepted with a^i; the
verification itself yields one more token: 1 + a + … + a^k tokens per verification on average.
"""

from __future__ import annotations

from penstock.capacity.speed import Speed

MAX_DRAFTS = 16


def tokens_per_verification(acceptance: float, drafts: int) -> float:
    if acceptance == 1:
        return drafts + 1.0
    return float((1 - acceptance ** (drafts + 1)) / (1 - acceptance))


def speedup(acceptance: float, drafts: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Tokens per time, in those of decoding without drafts. Both costs are in steps of the model alone: `draft_cost`
    of one draft, `verify_cost` of the verification, which is 1 where reading the weights takes all the time."""
    return tokens_per_verification(acceptance, drafts) / (drafts * draft_cost + verify_cost)


def verify_cost(speed: Speed, batch: float, context: float, drafts: int) -> float:
    """Above 1 as soon as the arithmetic of drafts + 1 tokens a sequence takes longer than the reading."""
    return speed.step(batch, context, drafts + 1).seconds / speed.step(batch, context).seconds


def best_drafts(speed: Speed, batch: float, context: float, acceptance: float, draft_cost: float) -> tuple[int, float]:
    """The best number of drafts and its speedup; (0, 1) if drafts gain nothing."""
    gains = [
        (speedup(acceptance, drafts, draft_cost, verify_cost(speed, batch, context, drafts)), drafts)
        for drafts in range(1, MAX_DRAFTS + 1)
    ]
    gain, drafts = max(gains, key=lambda pair: (pair[0], -pair[1]))
    return (drafts, gain) if gain > 1 else (0, 1.0)
