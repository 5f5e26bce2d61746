"""Token ids for an upstream whose own ids are not known: each text that comes with a log-probability gets one here.

Id 0 is a token of unknown text: it stands for tokens that are only counted. So requests of upstreams have token ids
like all others, and the writers of responses need no other way for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.flow import TextStream

UNKNOWN = 0
MAX_TOKENS = 1 << 19  # distinct texts: more than any vocabulary
MAX_TOKEN_BYTES = 512


class UpstreamVocabulary:
    """The ids of one model. Only grows."""

    special_ids: Collection[int] = ()

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {b"": UNKNOWN}
        self._texts: list[bytes] = [b""]

    def token(self, text: bytes) -> int:
        """The id of a text; a new one if it has none. UNKNOWN if it cannot be a token's."""
        if (known := self._ids.get(text)) is not None:
            return known
        if len(text) > MAX_TOKEN_BYTES or len(self._texts) >= MAX_TOKENS:
            return UNKNOWN
        self._ids[text] = len(self._texts)
        self._texts.append(text)
        return self._ids[text]

    def token_bytes(self, token: int) -> bytes:
        return self._texts[token]

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def text_stream(self, prompt: Sequence[int], *, skip_special: bool = True) -> TextStream:
        return _TextStream(self)


class _TextStream:
    """Texts of tokens that are whole characters."""

    fixed_texts = None
    holds_text = False

    def __init__(self, vocabulary: UpstreamVocabulary) -> None:
        self._vocabulary = vocabulary

    def push(self, token: int) -> str:
        return self._vocabulary.decode([token])

    def flush(self) -> str:
        return ""
