"""Log-probabilities of a message's tokens. The output has other tokens too, of reasoning and tool calls, and its text
does not say where tokens begin: so the tokens are decoded again, and the text is searched in the result."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow import FinishReason, TokenLogprobs
from penstock.flow.protocols import Vocabulary
from penstock.http.api.logprobs import TokenLogprob, token_logprob

_BY_TOKEN = (FinishReason.END, FinishReason.STOP_TOKEN)  # the last token is not part of the output


class TextLogprobs:
    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._decoder = vocabulary.text_stream(prompt)
        self._entries: list[TokenLogprobs | None] = []  # of tokens whose text is not taken yet; None: only partly
        self._texts: list[
            str
        ] = []  # of each; "" where it only begins a character. The rest, of one that is partly taken

    def push(self, entries: Sequence[TokenLogprobs], finish: FinishReason | None) -> None:
        for entry in entries[:-1] if finish in _BY_TOKEN else entries:
            text = self._decoder.push(entry.token)
            if text or entry.token not in self._vocabulary.special_ids:
                self._entries.append(entry)
                self._texts.append(text)
        if finish is not None and self._texts:
            self._texts[-1] += self._decoder.flush()

    def skip(self, text: str) -> None:
        """Drops the tokens of reasoning."""
        self._find(text)

    def take(self, text: str) -> list[TokenLogprob]:
        """The log-probabilities of this text's tokens. A token that spans two texts goes with the first."""
        return [token_logprob(entry, self._vocabulary) for entry in self._find(text)]

    def _find(self, text: str) -> list[TokenLogprobs]:
        start = "".join(self._texts).find(text)
        return self._span(start, start + len(text)) if start >= 0 else self._match_scattered(text)

    def _span(self, start: int, end: int) -> list[TokenLogprobs]:
        taken, place, count = [], 0, 0
        while place < end:
            entry, begin = self._entries[count], place
            place += len(self._texts[count])
            if entry is not None and (place > start or begin == place == start):
                taken.append(entry)
            count += 1
        rest = place - end  # of the last token
        self._drop(count - 1 if rest else count)
        if rest:
            self._entries[0], self._texts[0] = None, self._texts[0][-rest:]
        return taken

    def _match_scattered(self, text: str) -> list[TokenLogprobs]:
        """For a text with hidden tokens in between, such as a tool call."""
        taken, last = [], 0
        for count, (entry, piece) in enumerate(zip(self._entries, self._texts, strict=True), 1):
            if piece and text.startswith(piece):
                text, last = text[len(piece) :], count
                if entry is not None:
                    taken.append(entry)
        self._drop(last)
        return taken

    def _drop(self, count: int) -> None:
        del self._entries[:count], self._texts[:count]
