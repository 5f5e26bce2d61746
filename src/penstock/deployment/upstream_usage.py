"""Token counts of requests that an upstream serves: an estimate before, its own `usage` after.

Without a tokenizer the estimate is the number of UTF-8 bytes, which no byte-level tokenizer exceeds, and an allowance
for what a chat template adds. A `usage` that is missing or cannot be true is replaced by the estimate, and marked.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from penstock.flow import Request

PER_MESSAGE, PER_PROMPT = 8, 16  # tokens that a template adds
# Bounds of a true count: generous, since tokenizers differ and upstreams add system prompts of their own.
MOST, SLACK = 8, 64  # times the estimate, and tokens beyond that
LEAST = 1 / 128  # of the estimate: no token has more bytes on average


class TokenCounter(Protocol):
    def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...


class Usage(msgspec.Struct, frozen=True):
    """What one request used, in tokens."""

    prompt: int
    output: int
    cached: int = 0
    reasoning: int = 0
    estimated: bool = False


class ReportedDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ReportedUsage(msgspec.Struct, frozen=True):
    """`usage` of OpenAI's API. Other servers leave fields out."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: ReportedDetails | None = None
    completion_tokens_details: ReportedDetails | None = None


def count_text(text: str, tokenizer: TokenCounter | None) -> int:
    return len(text.encode(errors="replace")) if tokenizer is None else len(tokenizer.encode(text, add_special=False))


def estimate_prompt(request: Request, tokenizer: TokenCounter | None) -> int:
    """Tokens of the prompt, template included."""
    if request.tokens is not None:
        return len(request.tokens)
    if request.messages is None:
        return count_text(request.text or "", tokenizer)
    count = PER_PROMPT
    for message in request.messages:
        count += PER_MESSAGE + count_text(_text(message), tokenizer)
    if request.tools is not None:
        count += count_text(msgspec.json.encode(request.tools.tools).decode(), tokenizer)
    return count


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    rest = {name: message[name] for name in ("tool_calls", "reasoning_content", "name") if message.get(name)}
    return f"{content}{msgspec.json.encode(rest).decode() if rest else ''}"


def settle(
    reported: ReportedUsage | None, *, prompt_estimate: int, output_estimate: int, output_limit: int | None
) -> Usage:
    """The usage to charge. `output_limit` is max_tokens times choices, if the request has one."""
    estimate = Usage(prompt_estimate, output_estimate, estimated=True)
    if reported is None or reported.prompt_tokens is None or reported.completion_tokens is None:
        return estimate
    prompt, output = reported.prompt_tokens, reported.completion_tokens
    cached = (reported.prompt_tokens_details or ReportedDetails()).cached_tokens or 0
    reasoning = (reported.completion_tokens_details or ReportedDetails()).reasoning_tokens or 0
    most = MOST * output_estimate + reasoning if output_limit is None else output_limit
    plausible = (
        LEAST * prompt_estimate <= prompt <= MOST * prompt_estimate + SLACK
        and LEAST * output_estimate <= output <= most + SLACK
        and 0 <= cached <= prompt
        and 0 <= reasoning <= output
    )
    return Usage(prompt, output, cached, reasoning) if plausible else estimate
