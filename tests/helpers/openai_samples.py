"""Sample request bodies and engine results for the tests of `http/api`."""

from __future__ import annotations

import json
from typing import Any

from penstock.flow import Choice, Completion, FinishReason, Timings, TokenLogprobs

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "ab abc"}
EMBED: dict[str, Any] = {"model": "tiny", "input": "ab abc"}

TIMES = Timings(arrival=10.0, admitted=10.5, first_token=11.0, finished=13.0)


def raw(body: Any) -> bytes:
    return json.dumps(body).encode()


def logprob(token: int, value: float = -0.5, top: list[tuple[int, float]] | None = None) -> TokenLogprobs:
    return TokenLogprobs(token, value, 1, top if top is not None else [])


def choice(index: int, text: str, tokens: list[int], finish: FinishReason = FinishReason.LENGTH, **more: Any) -> Choice:
    return Choice(index, text, tokens, finish, timings=TIMES, **more)


def completion(prompt: list[int], *choices: Choice, **more: Any) -> Completion:
    return Completion(id="1", prompt_tokens=prompt, choices=list(choices), **more)
