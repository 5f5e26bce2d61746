"""Special tokens that are written out in texts from elsewhere, such as documents and summaries: they become plain text,
so that no document can end its message or begin another one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.errors import InvalidRequest
from penstock.flow import Vocabulary
from penstock.flow.context import Document

PIECE = 1 << 17  # characters searched at once
TAGS = ("</document",)  # of `documents.block`: no document closes its own


class ControlTokens:
    """Of one tokenizer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        spelled = {vocabulary.token_bytes(token).decode(errors="replace") for token in vocabulary.special_ids}
        # By their first two characters: most texts have none of these, and are not searched for each token.
        self._by_start: defaultdict[str, list[str]] = defaultdict(list)
        for text in sorted({*spelled, *TAGS}, key=lambda text: (-len(text), text)):
            if len(text) > 1:
                self._by_start[text[:2]].append(text)
        self._longest = max(map(len, (*spelled, *TAGS)))

    def defuse(self, text: str) -> str:
        """The text with a space behind the first character of each: `<|im_end|>` becomes `< |im_end|>`. Piece by piece,
        each of which takes a millisecond: one call for a long text would hold the interpreter."""
        parts, begin, found = [], 0, False
        while begin < len(text):
            end = self._border(text, begin, begin + PIECE)
            piece = text[begin:end]
            parts.append(self._defuse(piece))
            begin, found = end, found or parts[-1] is not piece
        return "".join(parts) if found else text

    def _border(self, text: str, begin: int, end: int) -> int:
        """The last place up to `end` that is inside no token."""
        if end >= len(text):
            return len(text)
        for place in range(end - self._longest + 1, end):
            for token in self._by_start.get(text[place : place + 2], ()):
                if place + len(token) > end and place > begin and text.startswith(token, place):
                    return self._border(text, begin, place)
        return end

    def _defuse(self, text: str) -> str:
        for start, known in self._by_start.items():
            if start in text:
                for token in known:
                    text = text.replace(token, f"{token[0]} {token[1:]}")  # the same object if there is none
        return text


def plain_documents(documents: Sequence[Document], control: ControlTokens) -> tuple[Document, ...]:
    """Without special tokens in what stands in the prompt. Raises InvalidRequest for an id that has some: the trace
    names documents by it."""
    for place, one in enumerate(documents):
        if control.defuse(one.id) != one.id:
            field = f"documents[{place}].id"
            raise InvalidRequest(f"{field} has a special token of this model, which names cannot have", param=field)
    return tuple(
        replace(one, text=control.defuse(one.text), title=one.title and control.defuse(one.title)) for one in documents
    )
