"""Timings of a request, for its response."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from penstock.flow import Completion
from penstock.http.api.openai.response_bodies import PromptTokensDetails, Timings, Usage


def final_timings(completions: Sequence[Completion], *, seconds: bool, per_token: bool) -> Timings:
    """`seconds`: the fields of `include_timings`. `per_token`: those of `timings_per_token`."""
    choices = [choice for completion in completions for choice in completion.choices]
    times = [choice.timings for choice in choices if choice.timings is not None]
    arrival = min(time.arrival for time in times)
    finished = max(time.finished for time in times)
    admitted = min([time.admitted for time in times if time.admitted is not None], default=finished)
    first = min([time.first_token for time in times if time.first_token is not None], default=None)
    decode = None if first is None else finished - first
    cached = sum(completion.cached_tokens for completion in completions)
    drafted, accepted = sum(time.drafted for time in times), sum(time.accepted for time in times)
    fields: dict[str, Any] = {}
    if drafted and seconds:
        fields |= {"drafted_tokens": drafted, "accepted_tokens": accepted}
    if drafted and per_token:
        fields |= {"draft_n": drafted, "draft_n_accepted": accepted}
    if seconds:
        followers = sum(max(choice.output_tokens - 1, 0) for choice in choices)  # decoding begins after the first token
        fields |= {
            "queue_seconds": round(admitted - arrival, 6),
            "prefill_seconds": None if first is None else round(first - admitted, 6),
            "decode_seconds": None if decode is None else round(decode, 6),
            "cached_tokens": cached,
            "tokens_per_second": round(followers / decode, 3) if decode and followers else None,
        }
    if per_token:
        prompt = sum(len(completion.prompt_tokens) for completion in completions)
        output = sum(choice.output_tokens for choice in choices)
        fields |= _per_token(prompt, cached, output, (finished if first is None else first) - arrival, decode or 0.0)
    return Timings(**fields)


def _per_token(prompt: int, cached: int, output: int, prompt_s: float, output_s: float) -> dict[str, Any]:
    """From prompt tokens, cached tokens, output tokens, and the seconds of prefill and decode."""
    computed = prompt - cached
    timed = output > 1 and output_s > 0  # the first token comes with the prompt
    return {
        "cache_n": cached,
        "prompt_n": computed,
        "prompt_ms": round(prompt_s * 1000, 3),
        "prompt_per_token_ms": round(prompt_s * 1000 / computed, 3) if computed else None,
        "prompt_per_second": round(computed / prompt_s, 3) if prompt_s else None,
        "predicted_n": output,
        "predicted_ms": round(output_s * 1000, 3),
        "predicted_per_token_ms": round(output_s * 1000 / output, 3) if timed else None,
        "predicted_per_second": round(output / output_s, 3) if timed else None,
    }


class RunningUsage:
    """Usage and timings of a stream so far, over all prompts and choices, for every chunk. Times are the frontend's:
    the engine reports its own when a sequence ends."""

    def __init__(self) -> None:
        self._prompts: set[int] = set()
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self._arrival = time.monotonic()
        self._first_token: float | None = None

    def start_prompt(self, prompt: int, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt counts once, however many choices it has."""
        if self._first_token is None:
            self._first_token = time.monotonic()
        if prompt not in self._prompts:
            self._prompts.add(prompt)
            self._prompt_tokens += prompt_tokens
            self._cached_tokens += cached_tokens

    def add_output(self, output_tokens: int) -> None:
        self._output_tokens += output_tokens

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._output_tokens,
            total_tokens=self._prompt_tokens + self._output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._cached_tokens),
        )

    def timings(self) -> Timings:
        now = time.monotonic()
        first = now if self._first_token is None else self._first_token
        counts = (self._prompt_tokens, self._cached_tokens, self._output_tokens)
        return Timings(**_per_token(*counts, first - self._arrival, now - first))
