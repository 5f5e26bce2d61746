"""Explains in words why so much of a prompt was found in the prefix cache, and no more: a `flow.record.Finding`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.flow import record
from penstock.flow.record import FINDINGS, Finding

SHOWN_TOKENS = 24  # on either side of the token at which a prompt diverges

Decode = Callable[[Sequence[int]], str]


def explain_prefix(
    finding: Finding, prompt_tokens: int, cached: int, block_size: int, own: Sequence[int] | None, decode: Decode
) -> dict[str, Any] | None:
    """`own` are the prompt's tokens, if they may be shown: to their own tenant only."""
    if finding.reason == record.NONE:
        return None
    at = finding.matched if finding.reason == record.DIVERGED else None
    shown = own if finding.reason in (record.DIVERGED, record.EXTENDS, record.EVICTED) else None
    return {
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "computed_tokens": prompt_tokens - cached,
        "block_size": block_size,
        "reason": FINDINGS[finding.reason],
        "matched_tokens": finding.matched,
        "diverged_at": at,
        "evicted_tokens": finding.evicted,
        "evicted_s_ago": finding.evicted_ms / 1000 if finding.evicted_ms else None,
        "message": _sentence(finding, prompt_tokens, cached, block_size),
        "text": None if shown is None else _around(shown, finding.matched, decode),
    }


def _around(own: Sequence[int], at: int, decode: Decode) -> dict[str, str]:
    return {
        "before": decode(own[max(0, at - SHOWN_TOKENS) : at]),
        "at": decode(own[at : at + 1]),
        "after": decode(own[at + 1 : at + 1 + SHOWN_TOKENS]),
    }


def _sentence(finding: Finding, prompt_tokens: int, cached: int, block_size: int) -> str:
    reason, matched = finding.reason, finding.matched
    if reason == record.FULL:
        return f"All that can be shared of the {prompt_tokens} tokens was cached: {cached}, in blocks of {block_size}."
    if reason == record.DIVERGED:
        return (
            f"The prompt diverges from the nearest cached prefix at token {matched}; {cached} tokens in full blocks "
            "before it were reused."
        )
    if reason == record.EXTENDS:
        return f"The prompt continues where the nearest cached prefix ends, at token {matched}; {cached} were reused."
    if reason == record.EVICTED:
        ago = f" {finding.evicted_ms / 1000:.1f} s ago" if finding.evicted_ms else ""
        return (
            f"{matched} tokens agree with a prefix that was cached, but {finding.evicted} of them had been evicted"
            f"{ago}; {cached} were reused."
        )
    if reason == record.TOO_SHORT:
        return (
            f"{prompt_tokens} tokens do not fill a block of {block_size} and leave one to compute: too short to share."
        )
    if reason == record.OFF:
        return "Prefix caching is off."
    if reason == record.NOT_READ:
        return "Every position had to be computed (an embedding, or prompt_logprobs): the cache was not read."
    return "No prefix that is cached, or was lately, begins like this prompt."
