"""The tokens of a GGUF file, and how they merge."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from penstock.errors import ModelInvalid
from penstock.store.gguf import Header

Merge = tuple[str, str]


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    header: Header
    tokens: list[str]
    types: list[int]
    special: frozenset[int]  # ids that stand for something outside the text
    ids: dict[str, int]  # of the tokens that can occur: neither padding of the embedding table nor unused

    @classmethod
    def read(cls, header: Header) -> Vocabulary:
        tokens = array(header, "tokens", str)
        if not tokens:
            raise invalid("it has no tokens")
        types = array(header, "token_type", int, len(tokens)) or [TokenType.NORMAL] * len(tokens)
        ends = [header.metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("bos", "eos", "eot", "eom")]
        special = frozenset(
            index
            for index, type_ in enumerate(types)
            if type_ in (TokenType.CONTROL, TokenType.UNKNOWN) or index in ends
        )
        ids: dict[str, int] = {}
        for index, (text, type_) in enumerate(zip(tokens, types, strict=True)):
            if type_ == TokenType.UNUSED or text in ("", f"[PAD{index}]"):
                continue
            if ids.setdefault(text, index) != index:
                raise invalid(f"its tokens {ids[text]} and {index} are both {text!r}")
        return cls(header, tokens, types, special, ids)

    def setting(self, name: str, default: Any = None) -> Any:
        return self.header.metadata.get(f"tokenizer.ggml.{name}", default)

    def role(self, name: str, default: int | None = None) -> int:
        """The id of a token the file names by what it is for: "bos", "eos", "unknown"."""
        index = self.setting(f"{name}_token_id", default)
        if not isinstance(index, int) or not 0 <= index < len(self.tokens) or self.tokens[index] not in self.ids:
            raise invalid(f"its {name} token is {index}, which is none of its {len(self.ids)} tokens")
        return index

    def scores(self) -> list[float]:
        scores = array(self.header, "scores", float, len(self.tokens))
        if not scores:
            raise invalid("its tokens have no scores")
        return scores

    def given_merges(self) -> list[Merge]:
        merges = []
        for entry in array(self.header, "merges", str):
            space = entry.find(" ", 1)  # the left part may itself begin with one
            left, right = entry[:space], entry[space + 1 :]
            if space < 0 or not {left, right, left + right} <= self.ids.keys():
                raise invalid(f"its merge {entry!r} is not of two tokens into a third")
            merges.append((left, right))
        if not merges:
            raise invalid("it has no merges")
        return merges

    def scored_merges(self) -> list[Merge]:
        """SentencePiece merges whichever neighbours make the token of the highest score. As a list of merges that is:
        every way to cut a token into two, best token first."""
        scores = self.scores()
        normal = {text: index for text, index in self.ids.items() if self.types[index] == TokenType.NORMAL}
        best_first = sorted(normal, key=lambda text: -scores[normal[text]])
        return [merge for text in best_first for merge in _cuts(text, normal)]


def _cuts(text: str, parts: Collection[str]) -> Iterator[Merge]:
    for at in range(1, len(text)):
        left, right = text[:at], text[at:]
        if left in parts and right in parts:
            yield left, right


def array(header: Header, name: str, of: type, length: int | None = None) -> list[Any]:
    """Empty if the file has none."""
    values = header.metadata.get(f"tokenizer.ggml.{name}", [])
    if not isinstance(values, list) or not all(isinstance(value, of) for value in values):
        raise invalid(f"tokenizer.ggml.{name} is not a list of {of.__name__}")
    if values and length is not None and len(values) != length:
        raise invalid(f"tokenizer.ggml.{name} has {len(values)} entries for {length} tokens")
    return values


def invalid(what: str) -> ModelInvalid:
    return ModelInvalid(f"the GGUF file's tokenizer cannot be used: {what}", param="model")
