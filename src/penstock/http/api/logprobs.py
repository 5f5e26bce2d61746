"""Log-probabilities as one object per token: OpenAI's form for chat, which other APIs share."""

from __future__ import annotations

from penstock.flow import TokenLogprobs, Vocabulary
from penstock.http.api.response_bodies import Body

MIN_LOGPROB = -9999.0  # OpenAI's value for a probability of 0: JSON has no infinity


class TopLogprob(Body, kw_only=True, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Body, kw_only=True, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


def token_logprob(entry: TokenLogprobs, vocabulary: Vocabulary, *, as_ids: bool = False) -> TokenLogprob:
    """`as_ids`: `token` is the id instead of the text. The bytes are those of the text in any case."""
    spelling = vocabulary.token_bytes(entry.token)
    return TokenLogprob(
        token=token_id_name(entry.token) if as_ids else spelling.decode(errors="replace"),
        logprob=max(entry.logprob, MIN_LOGPROB),
        bytes=list(spelling),
        top_logprobs=[_top_logprob(token, logprob, vocabulary, as_ids) for token, logprob in entry.top],
    )


def _top_logprob(token: int, logprob: float, vocabulary: Vocabulary, as_ids: bool) -> TopLogprob:
    spelling = vocabulary.token_bytes(token)
    name = token_id_name(token) if as_ids else spelling.decode(errors="replace")
    return TopLogprob(token=name, logprob=max(logprob, MIN_LOGPROB), bytes=list(spelling))


def token_id_name(token: int) -> str:
    """vLLM's notation."""
    return f"token_id:{token}"
