"""Compiles constraints for one vocabulary."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest, ModelInvalid
from penstock.flow import Constraint
from penstock.grammar.constraint_grammar import constraint_error, to_llguidance

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_LEXER_STATES = 50_000  # of one sequence: about 1.5 KB each; typical grammars have some hundred
# Items of the Earley parser's current row: the ways to parse the text so far. An object of 500 optional properties has
# 2,000, which take a millisecond. In an ambiguous or right-recursive grammar they grow with the text, and the time with
# their cube: so the limit grows with the length of the grammar.
MAX_ROW_ITEMS = 2_000
MIN_ROW_ITEMS = 128  # with so many, a mask takes up to 12 ms in a vocabulary of 49,152 tokens
BYTES_PER_ROW_ITEM = 8  # rules generated for optional properties and for lists of choices take 8 to 60 bytes per item
MAX_ERROR_LENGTH = 300
TRIAL_TOKENS = 8  # that `check` generates
_TOO_COMPLEX = ("parser error: ", "lexer error: ")
_REGEX_ERROR = re.compile("^error: (.+)$", re.MULTILINE)  # the reason, below a picture of the place
NO_TOKENIZER = "this model has no tokenizer, so its answers cannot be constrained"


class Compiler:
    """Thread-safe. Reads the vocabulary with the first constraint, which takes up to a second."""

    def __init__(self, tokenizer: Path | None, vocab_size: int, end_tokens: tuple[int, ...]) -> None:
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._end_tokens = end_tokens
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def compile(self, constraint: Constraint) -> LLMatcher:
        """A matcher at the start of a text; its first mask has been computed. Raises InvalidRequest."""
        from llguidance import LLMatcher, LLParserLimits

        vocabulary = self.vocabulary()
        limits = LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, max_items_in_row=_row_items(constraint), verbose_errors=False
        )
        matcher = LLMatcher(vocabulary, to_llguidance(constraint), log_level=0, limits=limits)
        if matcher.is_error():
            error = matcher.get_error()
            reason = _REGEX_ERROR.search(error) if constraint.kind == "regex" else None
            raise constraint_error(constraint, _readable(reason[1] if reason else error))
        allowed = any(matcher.compute_bitmask())
        if matcher.get_error().startswith(_TOO_COMPLEX):
            raise constraint_error(constraint, "it is too complex")
        if matcher.is_error() or not allowed:
            raise constraint_error(constraint, "there is no text that it allows")
        return matcher

    def check(self, constraint: Constraint) -> None:
        """Compile, and generate a few tokens: some constraints become too complex with the first one. Raises
        InvalidRequest."""
        matcher = self.compile(constraint)
        ends = set(self.vocabulary().eos_tokens)
        for _ in range(TRIAL_TOKENS):
            token = _first_token(matcher.compute_bitmask(), ends)
            if token is not None:
                matcher.consume_token(token)
            if matcher.get_error().startswith(_TOO_COMPLEX):
                raise constraint_error(constraint, "it is too complex")
            if token is None or matcher.is_stopped():
                return

    def vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._read()
            return self._vocabulary

    def _read(self) -> LLTokenizer:
        if self._path is None:
            raise InvalidRequest(NO_TOKENIZER, param="constraint")
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise InvalidRequest(
                "constraints need the package llguidance, which is not installed", param="constraint"
            ) from None
        ends = list(self._end_tokens) or None
        try:
            return LLTokenizer(self._path.read_text(encoding="utf-8"), n_vocab=self._vocab_size, eos_token=ends)
        except Exception as error:  # the library raises bare exceptions
            raise ModelInvalid(f"this model's vocabulary cannot be constrained: {error}", param="constraint") from None


def _first_token(bitmask: bytes, ends: set[int]) -> int | None:
    """The first token that the mask allows, ends aside."""
    mask = int.from_bytes(bitmask, "little")
    while mask:
        token = (mask & -mask).bit_length() - 1
        if token not in ends:
            return token
        mask &= mask - 1
    return None


def _row_items(constraint: Constraint) -> int:
    source = constraint.source
    if constraint.kind != "grammar" or "%json" in source or '"json_schema"' in source:
        return MAX_ROW_ITEMS  # JSON is unambiguous
    return min(MAX_ROW_ITEMS, MIN_ROW_ITEMS + len(source) // BYTES_PER_ROW_ITEM)


def _readable(error: str) -> str:
    """llguidance's error without hints at options that a client cannot set."""
    text = " ".join(error.replace("<non-verbose/>", "").split())
    text = text.replace("Enable 'coerce_one_of' option to approximate oneOf with anyOf", "Use anyOf.")
    text = text.replace("Unimplemented keys:", "it has keywords that are not supported:")
    return text if len(text) <= MAX_ERROR_LENGTH else text[:MAX_ERROR_LENGTH] + "…"
