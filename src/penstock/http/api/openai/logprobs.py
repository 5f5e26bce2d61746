"""Log-probabilities of completions: four parallel lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.flow import TokenLogprobs
from penstock.flow.protocols import Vocabulary
from penstock.http.api.logprobs import MIN_LOGPROB, token_id_name
from penstock.http.api.openai.response_bodies import TextLogprobs


class TextLogprobsWriter:
    """The lists of one choice. Counts the characters before each token, for which it decodes the tokens itself: the
    text of a chunk does not say where its tokens begin, and part of it may be held back."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Sequence[int],
        offset: int,
        *,
        as_ids: bool = False,
        skip_special: bool = True,
    ) -> None:
        """`offset` is where the choice begins: the length of the echoed prompt. `skip_special` as in the text."""
        self._vocabulary = vocabulary
        self._stream = vocabulary.text_stream(prompt, skip_special=skip_special)
        self._offset = offset
        self._as_ids = as_ids

    def push(self, entries: Sequence[TokenLogprobs], k: int) -> TextLogprobs:
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._stream.push(entry.token))
        return _lists([entry.token for entry in entries], entries, offsets, k, self._vocabulary, self._as_ids)


def prompt_logprob_lists(
    text: str,
    tokens: Sequence[int],
    entries: Sequence[TokenLogprobs | None],
    k: int,
    vocabulary: Vocabulary,
    *,
    as_ids: bool = False,
) -> TextLogprobs:
    """The lists of an echoed prompt. Special tokens that are not in its text, such as a prepended one, have no
    width."""
    stream = vocabulary.text_stream((), skip_special=False)
    offsets, offset = [], 0
    for token in tokens:
        special = token in vocabulary.special_ids
        piece = _text(vocabulary.token_bytes(token)) if special else stream.push(token)
        offsets.append(offset)
        if not special or text.startswith(piece, offset):
            offset += len(piece)
    return _lists(tokens, entries, offsets, k, vocabulary, as_ids)


def concatenate(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    return TextLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )


def _lists(
    tokens: Sequence[int],
    entries: Sequence[TokenLogprobs | None],
    offsets: list[int],
    k: int,
    vocabulary: Vocabulary,
    as_ids: bool,
) -> TextLogprobs:
    name = token_id_name if as_ids else lambda token: _text(vocabulary.token_bytes(token))
    return TextLogprobs(
        tokens=[name(token) for token in tokens],
        token_logprobs=[None if entry is None else max(entry.logprob, MIN_LOGPROB) for entry in entries],
        top_logprobs=[None if entry is None else _ranking(entry, k, name) for entry in entries],
        text_offset=offsets,
    )


def _ranking(entry: TokenLogprobs, k: int, name: Callable[[int], str]) -> dict[str, float]:
    """The k most likely tokens, and the token itself. Of tokens with the same text, the more likely one counts."""
    ranking: dict[str, float] = {}
    for token, logprob in [*entry.top[:k], (entry.token, entry.logprob)]:
        ranking.setdefault(name(token), max(logprob, MIN_LOGPROB))
    return ranking


def _text(spelling: bytes) -> str:
    """Bytes that are not valid text are escaped, as OpenAI does: otherwise they would all look the same."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
