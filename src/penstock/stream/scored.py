"""The choice of a request with `max_tokens: 0`, which asks for the log-probabilities of its prompt alone.

The engine draws one token all the same, since the log-probabilities of a prompt come with the first output.
"""

from __future__ import annotations

import msgspec

from penstock.flow import Chunk, Delta, FinishReason, TokenLogprobs
from penstock.stream.choice import ChoiceStream

_FAILED = (FinishReason.ERROR, FinishReason.CANCELLED, FinishReason.TIMEOUT)


class Scored(ChoiceStream):
    def push_token(self, token: int) -> None:
        return None

    def push(self, delta: Delta) -> Chunk | None:
        finish = delta.finish if delta.finish is None or delta.finish in _FAILED else FinishReason.LENGTH
        logprobs: list[TokenLogprobs] | None = None if delta.logprobs is None else []
        return super().push(msgspec.structs.replace(delta, tokens=[], logprobs=logprobs, finish=finish))
