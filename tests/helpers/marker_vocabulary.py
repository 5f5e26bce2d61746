"""Vocabularies in which markers are tokens, or are spelt, and random walks through a grammar over them."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler
from penstock.tokenize import Tokenizer

END = 1


class Vocabulary:
    """Every byte is a token, and so is every marker."""

    def __init__(self, folder: Path, markers: tuple[str, ...]) -> None:
        words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
        backend = Backend(models.BPE({word: index for index, word in enumerate(words)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(word, special=True) for word in ("<s>", "</s>", *markers)])
        path = folder / f"{abs(hash(markers))}.json"
        backend.save(str(path))
        self.tokenizer = Tokenizer.load(path)
        self.compiler = Compiler(path, self.tokenizer.vocab_size, (END,))

    def takes(self, constraint: Constraint, text: str) -> bool:
        """Whether this may be a whole output."""
        matcher = self.compiler.compile(constraint)
        tokens = self.tokenizer.encode(text, add_special=False)
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    def walk(self, constraint: Constraint, rng: random.Random, markers: tuple[str, ...]) -> tuple[str, bool]:
        """A random output that prefers markers and ends; and whether it ended."""
        matcher = self.compiler.compile(constraint)
        tokens: list[int] = []
        spelt = {mark: self.tokenizer.encode(mark, add_special=False) for mark in markers}
        while len(tokens) < 1500 and not matcher.is_stopped():
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [token for token in range(self.tokenizer.vocab_size) if mask >> token & 1]
            assert allowed
            liked = [[token] for token in allowed if token == END or token > 257 or self.token(token) in '"}]']
            liked += [ids for ids in spelt.values() if matcher.validate_tokens(ids) == len(ids)]
            chosen = rng.choice(liked) if liked and rng.random() < 0.2 else [rng.choice(allowed)]
            if chosen == [END]:
                return self.text(tokens), True
            assert matcher.consume_tokens(chosen)
            tokens += chosen
        return self.text(tokens), matcher.is_stopped()

    def token(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode(errors="replace")

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special=False)


class Vocabularies:
    """One vocabulary for each set of markers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_markers: dict[tuple[str, ...], Vocabulary] = {}

    def of(self, markers: tuple[str, ...]) -> Vocabulary:
        if markers not in self.by_markers:
            self.by_markers[markers] = Vocabulary(self.folder, markers)
        return self.by_markers[markers]
