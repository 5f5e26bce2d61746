"""Checks constrained output with a fresh matcher, and completes partial output to a full text."""

from __future__ import annotations

import random
from typing import Any

import jsonschema

from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler
from penstock.tokenize.tokenizer import Tokenizer

CLOSERS = ('"', "@", "x", "}", "]", "0", ":", ",")  # tokens that close a JSON text
LONGEST_END = 2000  # tokens


class GrammarOracle:
    def __init__(self, compiler: Compiler, tokenizer: Tokenizer) -> None:
        self.compiler = compiler
        self.tokenizer = tokenizer
        self.closers = [tokenizer.encode(text, add_special=False)[-1] for text in CLOSERS]
        self.ends = set(compiler.vocabulary().eos_tokens)

    def complete(self, constraint: Constraint, tokens: list[int]) -> str:
        """Complete `tokens` to a text that the constraint accepts; fails if it rejects one of them."""
        return self._end(constraint, list(tokens))

    def random_text(self, constraint: Constraint, rng: random.Random, steps: int) -> str:
        """Take up to `steps` random allowed tokens, then complete them to a text."""
        matcher = self.compiler.compile(constraint)
        tokens: list[int] = []
        for _ in range(steps):
            allowed = [token for token in self._allowed(matcher) if token not in self.ends]
            if not allowed:
                break
            tokens.append(rng.choice(allowed))
            assert matcher.consume_token(tokens[-1])
        return self._end(constraint, tokens)

    def _end(self, constraint: Constraint, tokens: list[int]) -> str:
        matcher = self.compiler.compile(constraint)
        assert matcher.validate_tokens(tokens) == len(tokens)
        assert not tokens or matcher.consume_tokens(tokens)
        rng = random.Random(1)
        for _ in range(LONGEST_END):
            if matcher.is_accepting():
                return self.tokenizer.decode(tokens)
            allowed = self._allowed(matcher)
            closers = [token for token in self.closers if token in allowed]
            if closers and rng.random() < 0.5:
                tokens.append(closers[0])
            else:
                tokens.append(rng.choice(closers if closers and rng.random() < 0.8 else sorted(allowed)))
            assert matcher.consume_token(tokens[-1])
        raise AssertionError(f"no end after {self.tokenizer.decode(tokens)[-100:]!r}")

    def _allowed(self, matcher: Any) -> set[int]:
        mask = matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        return {8 * place + bit for place, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1}


def assert_valid(value: Any, schema: dict[str, Any]) -> None:
    """Python knows no year 0 and no 29th of February in some years, so dates are left to their grammar."""
    formats = jsonschema.FormatChecker(("email", "ipv4", "ipv6", "uuid"))
    jsonschema.Draft202012Validator(schema, format_checker=formats).validate(value)
