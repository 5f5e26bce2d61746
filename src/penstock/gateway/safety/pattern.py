"""What must be known of a pattern before it can be matched against text that arrives in pieces.

`analyze` reads RE2's syntax (https://github.com/google/re2/wiki/Syntax) and returns the length of the longest match and
the pattern of all beginnings of matches: text that ends in such a beginning has to be held back.

    ab{2}c   ─►   at most 4 characters;   a, ab, abb, abbc: `(?:a(?:b{0,1}(?:b)?|b{2}(?:c)?))?`
"""

from __future__ import annotations

from typing import NamedTuple

MAX_REPEAT = 1000  # RE2's own limit


class PatternError(Exception):
    """It is not bounded, or it uses syntax that is not supported."""


class Analysis(NamedTuple):
    longest: int  # characters of the longest match
    beginnings: str  # a pattern of every beginning of a match, the empty one and the match itself included
    looks_ahead: bool  # whether a match may depend on the character behind it


class _Node(NamedTuple):
    """A part of a pattern."""

    source: str
    longest: int
    beginnings: str


_EMPTY = _Node("", 0, "")


def analyze(pattern: str) -> Analysis:
    """Of a pattern that RE2 accepts. Raises PatternError if a match can be of any length."""
    reader = _Reader(pattern)
    node = reader.read_alternatives(first=True)
    if reader.position < len(pattern):
        raise PatternError(f"unexpected {pattern[reader.position]!r}")
    return Analysis(node.longest, node.beginnings, reader.looks_ahead)


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.looks_ahead = False

    def peek(self, word: str) -> bool:
        return self.pattern.startswith(word, self.position)

    def skip(self, word: str) -> bool:
        if found := self.peek(word):
            self.position += len(word)
        return found

    def skip_until(self, end: str) -> str:
        """Read up to `end` and past it; returns what stands before it."""
        place = self.pattern.find(end, self.position)
        if place < 0:
            raise PatternError(f"{end!r} is missing")
        text, self.position = self.pattern[self.position : place], place + len(end)
        return text

    def read_alternatives(self, *, first: bool = False) -> _Node:
        """`first`: flags such as (?i) may come first, and hold for all of it."""
        flags = self._read_leading_flags() if first else ""
        branches = [self._read_branch()]
        while self.skip("|"):
            branches.append(self._read_branch())
        node = _Node(
            "|".join(branch.source for branch in branches),
            max(branch.longest for branch in branches),
            "|".join(branch.beginnings for branch in branches),
        )
        return _grouped(flags, node) if flags or len(branches) > 1 else node

    def _read_leading_flags(self) -> str:
        flags = ""
        while self.peek("(?") and (close := self.pattern.find(")", self.position)) > 0:
            inside = self.pattern[self.position + 2 : close]
            if not inside or inside.strip("imsU-"):
                break
            flags, self.position = flags + f"(?{inside})", close + 1
        return flags

    def _read_branch(self) -> _Node:
        nodes = []
        while self.position < len(self.pattern) and not (self.peek("|") or self.peek(")")):
            nodes.append(self._read_repeated())
        # From the back, each part wraps what follows it: as deep as the pattern is long, and no longer than twice that.
        whole = _EMPTY
        for node in reversed(nodes):
            alone = "" if _is_character(node) else f"|{node.beginnings}"
            beginnings = f"(?:{node.source}{whole.beginnings}{alone})?"
            whole = _Node(node.source + whole.source, node.longest + whole.longest, beginnings)
        return whole

    def _read_repeated(self) -> _Node:
        node = self._read_atom()
        while (counts := self._read_counts()) is not None:
            least, most = counts
            self.skip("?")  # lazy or greedy: the same texts match
            if most is None:
                raise PatternError(
                    f"it can match text of any length ({self.pattern[max(self.position - 12, 0) : self.position]!r}): "
                    "give the repetition an upper bound, such as {0,40}"
                )
            body = f"(?:{node.source})"
            source = f"{body}{{{least},{most}}}"
            beginnings = "" if most == 0 else f"(?:{body}{{0,{most - 1}}}(?:{node.beginnings}))"
            node = _Node(source, node.longest * most, beginnings)
        return node

    def _read_counts(self) -> tuple[int, int | None] | None:
        """How often the atom before is repeated; None: it is not."""
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.skip(sign):
                return counts
        if not self.peek("{"):
            return None
        inside = self.pattern[self.position + 1 : self.pattern.find("}", self.position)]
        low, comma, high = inside.partition(",")
        if not (low.isdecimal() and low.isascii() and (not high or (high.isdecimal() and high.isascii()))):
            return None  # RE2 reads it as a plain brace
        self.position += len(inside) + 2
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high else None

    def _read_atom(self) -> _Node:
        start = self.position
        char = self.pattern[start]
        if char == "(":
            return self._read_group()
        if char == "[":
            self._skip_class()
        elif char == "\\":
            if self._skip_escape():
                return self._assertion(self.pattern[start : self.position])
        else:
            self.position += 1
            if char in "^$":
                return self._assertion(char)
        return _character(self.pattern[start : self.position])

    def _assertion(self, source: str) -> _Node:
        self.looks_ahead = self.looks_ahead or source in ("\\b", "\\B", "$", "\\z")
        return _Node(source, 0, "")

    def _read_group(self) -> _Node:
        self.position += 1
        flags = ""
        if self.skip("?P<") or self.skip("?<"):
            self.skip_until(">")
        elif self.skip("?"):
            start = self.position
            while self.position < len(self.pattern) and self.pattern[self.position] in "imsU-":
                self.position += 1
            flags = self.pattern[start : self.position]
            if not self.skip(":"):
                raise PatternError("flags such as (?i) may stand at the beginning, or be limited to a group: (?i:…)")
        node = self.read_alternatives()
        if not self.skip(")"):
            raise PatternError("a closing bracket is missing")
        return _grouped(f"(?{flags})" if flags else "", node)

    def _skip_class(self) -> None:
        self.position += 1
        self.skip("^")
        first = True
        while first or not self.peek("]"):
            if self.position >= len(self.pattern):
                raise PatternError("a character class is not closed")
            first = False
            if self.skip("[:"):
                self.skip_until(":]")
            elif self.peek("\\"):
                self._skip_escape()
            else:
                self.position += 1
        self.position += 1

    def _skip_escape(self) -> bool:
        """Read an escape; returns whether it is an assertion instead of a character."""
        kind = self.pattern[self.position + 1 : self.position + 2]
        self.position += 2
        if kind in ("C", "Q"):
            raise PatternError(f"\\{kind} is not supported" + (": escape each character" if kind == "Q" else ""))
        if kind in ("p", "P", "x") and self.skip("{"):
            self.skip_until("}")
        elif kind in ("p", "P"):
            self.position += 1
        elif kind == "x":
            self.position += 2
        elif kind in "01234567":  # octal, of at most three digits
            end = self.position + 2
            while self.position < min(end, len(self.pattern)) and self.pattern[self.position] in "01234567":
                self.position += 1
        return kind in "bBAz"


def _character(source: str) -> _Node:
    return _Node(source, 1, f"(?:{source})?")


def _is_character(node: _Node) -> bool:
    return node.beginnings == f"(?:{node.source})?"


def _grouped(flags: str, node: _Node) -> _Node:
    """`flags` as a group of their own: "(?i)"."""
    opening = flags.replace(")", ":") or "(?:"
    closing = ")" * max(flags.count("("), 1)
    return _Node(f"{opening}{node.source}{closing}", node.longest, f"{opening}{node.beginnings}{closing}")
