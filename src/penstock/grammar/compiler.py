"""Compiles constraints for one vocabulary."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest, ModelInvalid
from penstock.flow import Constraint
from penstock.grammar.constraint_grammar import grammar_of, unusable

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_LEXER_STATES = 50_000  # of one sequence: about 1.5 KB each; a real grammar has some hundred
# A row has the ways in which a text can be read so far. An object of 500 optional properties has 2,000 at once, which
# are worth a millisecond. Those of an ambiguous grammar, or of one that recurs on the right, grow with the text, and
# the time they take with their cube: so a grammar has the more of them the longer it is itself.
MAX_ROW_ITEMS = 2_000
MIN_ROW_ITEMS = 128  # a mask takes up to 12 ms with so many, in a vocabulary of 49,152
BYTES_PER_ROW_ITEM = 8  # what is generated for optional properties and for lists of choices has 8 to 60
LONGEST_ERROR = 300
_TOO_COMPLEX = ("parser error: ", "lexer error: ")
_IN_REGEX = re.compile("^error: (.+)$", re.MULTILINE)  # what is wrong, among pictures of where
NO_TOKENIZER = "this model has no tokenizer, so its answers cannot be constrained"


class Compiler:
    """Threads may share it. The vocabulary is read when the first constraint comes, which takes up to a second."""

    def __init__(self, tokenizer: Path | None, vocab_size: int, end_tokens: tuple[int, ...]) -> None:
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._end_tokens = end_tokens
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def compile(self, constraint: Constraint) -> LLMatcher:
        """A matcher at the start of a text, with the first mask computed once. Raises InvalidRequest."""
        from llguidance import LLMatcher, LLParserLimits

        vocabulary = self.vocabulary()
        limits = LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, max_items_in_row=_row_items(constraint), verbose_errors=False
        )
        matcher = LLMatcher(vocabulary, grammar_of(constraint), log_level=0, limits=limits)
        if matcher.is_error():
            said = matcher.get_error()
            blamed = _IN_REGEX.search(said) if constraint.kind == "regex" else None
            raise unusable(constraint, _said(blamed[1] if blamed else said))
        allowed = any(matcher.compute_bitmask())
        if matcher.get_error().startswith(_TOO_COMPLEX):
            raise unusable(constraint, "it is too complex")
        if matcher.is_error() or not allowed:
            raise unusable(constraint, "there is no text that it allows")
        return matcher

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


def _row_items(constraint: Constraint) -> int:
    source = constraint.source
    if constraint.kind != "grammar" or "%json" in source or '"json_schema"' in source:
        return MAX_ROW_ITEMS  # JSON has brackets: there is one way to read it
    return min(MAX_ROW_ITEMS, MIN_ROW_ITEMS + len(source) // BYTES_PER_ROW_ITEM)


def _said(error: str) -> str:
    """llguidance's own words, less those about options that a client cannot set."""
    text = " ".join(error.replace("<non-verbose/>", "").split())
    text = text.replace("Enable 'coerce_one_of' option to approximate oneOf with anyOf", "Use anyOf.")
    text = text.replace("Unimplemented keys:", "it has keywords that are not supported:")
    return text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + "…"
