"""The rules of [[safety]], compiled once at start. Each tenant has the rules that name it and those that name none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from penstock.errors import InvalidSetting
from penstock.gateway.safety.choice_filter import SizeLimit
from penstock.gateway.safety.matcher import Matcher, Pattern, compile_expression
from penstock.gateway.safety.moderation_hook import Hook
from penstock.gateway.safety.pattern import PatternError, analyze
from penstock.gateway.safety.spelling import term_forms
from penstock.settings import SafetyEntry

MAX_PATTERNS = 4096  # of all rules, terms included
MAX_SOURCE = 256 << 10  # characters of all patterns
MAX_LENGTH = 1000  # characters of a match
MAX_MATCHERS = 64  # sets of rules that differ, of tenants and directions
MAX_SPACES = 4  # between the words of a term

Direction = Literal["input", "output"]


class Ruleset(NamedTuple):
    """The rules of one tenant for one direction."""

    matcher: Matcher | None = None
    sizes: tuple[SizeLimit, ...] = ()  # the smallest first
    hooks: tuple[Hook, ...] = ()

    def __bool__(self) -> bool:
        return self != Ruleset()

    @property
    def size(self) -> SizeLimit | None:
        """The one that a text exceeds first."""
        return self.sizes[0] if self.sizes else None


class Rules:
    def __init__(self, entries: Sequence[SafetyEntry], hooks: Sequence[Hook] = ()) -> None:
        """Raises InvalidSetting, which names the rule."""
        self.names = tuple(entry.name for entry in entries)
        self._entries = entries
        self.hooks = tuple(hooks)
        self._patterns = {entry.name: _patterns(entry) for entry in entries}
        count = sum(map(len, self._patterns.values()))
        size = sum(len(one.source) for patterns in self._patterns.values() for one in patterns)
        if count > MAX_PATTERNS or size > MAX_SOURCE:
            most = max(self._patterns, key=lambda name: len(self._patterns[name]))
            raise InvalidSetting(
                f"safety: {count} terms and patterns of {size} characters together; at most {MAX_PATTERNS} of "
                f"{MAX_SOURCE}. Most of them are in the rule {most!r}",
                param="safety",
            )
        self._matchers: dict[tuple[Pattern, ...], Matcher] = {}
        tenants = ("", *dict.fromkeys(tenant for entry in entries for tenant in entry.tenants))
        self._tenants = {
            tenant: {direction: self._ruleset(tenant, direction) for direction in ("input", "output")}
            for tenant in tenants
        }
        self._every_rule = {tenant: self._ruleset(tenant, None) for tenant in tenants}

    def of(self, tenant: str, direction: Direction | None) -> Ruleset:
        """`direction`: None for the rules of both."""
        name = tenant if tenant in self._tenants else ""
        return self._every_rule[name] if direction is None else self._tenants[name][direction]

    def names_of(self, tenant: str) -> list[str]:
        """Of all rules that apply to a tenant."""
        return [entry.name for entry in self._entries if not entry.tenants or tenant in entry.tenants]

    def _ruleset(self, tenant: str, direction: Direction | None) -> Ruleset:
        entries = [
            entry
            for entry in self._entries
            if (not entry.tenants or tenant in entry.tenants)
            and (direction is None or directions(entry) in ("both", direction))
        ]
        sizes = [SizeLimit(entry.name, entry.max_chars) for entry in entries if entry.max_chars is not None]
        return Ruleset(
            self._matcher(tuple(one for entry in entries for one in self._patterns[entry.name])),
            tuple(sorted(sizes, key=lambda limit: limit.characters)),
            tuple(hook for hook in self.hooks if any(hook.rule == entry.name for entry in entries)),
        )

    def _matcher(self, patterns: tuple[Pattern, ...]) -> Matcher | None:
        if not patterns:
            return None
        if patterns not in self._matchers:
            if len(self._matchers) == MAX_MATCHERS:
                raise InvalidSetting(
                    f"safety: tenants have more than {MAX_MATCHERS} different sets of rules", param="tenants"
                )
            self._matchers[patterns] = Matcher(patterns)
        return self._matchers[patterns]


def directions(entry: SafetyEntry) -> Literal["input", "output", "both"]:
    """A hook looks at the input unless the rule says otherwise: for outputs, whole answers have to wait for it."""
    return entry.on or ("both" if entry.hook is None else "input")


def _patterns(entry: SafetyEntry) -> list[Pattern]:
    terms = [_of_term(term, entry) for term in entry.terms]
    flag = "(?i)" if entry.ignore_case else ""
    return [_pattern(entry.name, source) for source in (*terms, *(flag + source for source in entry.patterns))]


def _of_term(term: str, entry: SafetyEntry) -> str:
    """White space stands for any white space. Where a term begins or ends with an ASCII letter or digit, so does a
    word."""
    ignore_case = entry.ignore_case is not False
    sources = []
    for form in term_forms(term, ignore_case=ignore_case):
        if not (words := form.split()):
            raise InvalidSetting(f"safety ({entry.name}): terms: a term is empty", param="terms")
        source = f"\\s{{1,{MAX_SPACES}}}".join(map(_escape, words))
        first, last = (_boundary(words[0][0]), _boundary(words[-1][-1])) if entry.whole_words else ("", "")
        sources.append(_with_similar_letters(source, first, last) if ignore_case else first + source + last)
    return ("(?i)" if ignore_case else "") + "|".join(dict.fromkeys(sources))


def _with_similar_letters(source: str, first: str, last: str) -> str:
    """Between the borders of words, with letters that RE2 does not take for the same: ß and ss, and the Turkish i. They
    are no ASCII letters, and so no borders are beside them."""

    def alternatives(found: re.Match[str]) -> str:
        before, behind = first if found.start() == 0 else "", last if found.end() == len(source) else ""
        return f"(?:{before}{found[0]}{behind}|{'ß' if found[0] == 'ss' else '[ıİ]'})"

    spans = [found.span() for found in re.finditer("ss|i", source)]
    starts, ends = any(start == 0 for start, _ in spans), any(end == len(source) for _, end in spans)
    return ("" if starts else first) + re.sub("ss|i", alternatives, source) + ("" if ends else last)


def _boundary(char: str) -> str:
    return "\\b" if char == "_" or (char.isascii() and char.isalnum()) else ""


def _escape(text: str) -> str:
    return "".join(char if char.isalnum() or not char.isascii() else f"\\x{ord(char):02x}" for char in text)


def _pattern(rule: str, source: str) -> Pattern:
    here = f"safety ({rule}): patterns: {source[:80]!r}"
    try:
        expression = compile_expression(source)
        analysis = analyze(source)
    except (ValueError, PatternError) as error:
        raise InvalidSetting(f"{here}: {error}", param="patterns") from None
    if expression.fullmatch(b"") is not None or analysis.longest == 0:
        raise InvalidSetting(f"{here}: it matches the empty text", param="patterns")
    if analysis.longest > MAX_LENGTH:
        raise InvalidSetting(
            f"{here}: it can match {analysis.longest} characters, which would be held back; at most {MAX_LENGTH}",
            param="patterns",
        )
    return Pattern(rule, source, analysis)
