"""EBNF as llama.cpp (GBNF), SGLang and vLLM's xgrammar read it, written as Lark for llguidance.

    root ::= greeting " " [a-z]+ ("!" | "?"){1,3}   # a comment
    greeting ::= "hello"
           | "bye"

llguidance converts a subset of this notation. This module parses and checks the source, and writes it again in that
subset: names that cannot collide, one line per rule, escapes resolved.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s|\#[^\n]*)+)
  | (?P<name>[A-Za-z0-9_][A-Za-z0-9_-]*)
  | (?P<define>::=)
  | (?P<literal>"(?:[^"\\\n]|\\.)*")
  | (?P<characters>\[(?:[^\]\\\n]|\\.)*\])
  | (?P<repeat>[*+?]|\{\s*\d*\s*(?:,\s*\d*\s*)?\})
  | (?P<symbol>[|().])
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}
_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_][A-Za-z0-9_-]*[ \t]*::=", re.MULTILINE)
_ANY = f"[\\x00-{chr(0x10FFFF)}]"  # line breaks included, unlike the dot of a regular expression
MAX_REPETITIONS = 10_000
ROOT = "root"

Token = tuple[str, str, int]  # kind, text, place in the source


class EbnfError(Exception):
    """Its text names the mistake and the line."""


def is_ebnf(text: str) -> bool:
    """Lark's rules have a single colon."""
    return _RULE.search(text) is not None


def ebnf_to_lark(text: str) -> str:
    """Raises EbnfError."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    try:
        return gbnf_to_lark(_normalize(text))
    except (GbnfToLarkError, RecursionError) as error:
        raise EbnfError("it is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None


def _normalize(text: str) -> str:
    """The same grammar in llguidance's subset."""
    rules = _rules(_tokens(text), text)
    names = {name: ROOT if name == ROOT else f"r{place}" for place, name in enumerate(rules)}
    if ROOT not in names:
        raise EbnfError(f"it has no rule {ROOT!r}")
    lines = []
    for name, tokens in rules.items():
        lines.append(f"{names[name]} ::= {_body(tokens, names, text)}")
    return "\n".join(lines) + "\n"


def _tokens(text: str) -> list[Token]:
    tokens, place = [], 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise EbnfError(f"{text[place : place + 20]!r} in {_line(text, place)} is not understood")
        if found.lastgroup != "space":
            tokens.append((str(found.lastgroup), found[0], place))
        place = found.end()
    return tokens


def _rules(tokens: list[Token], text: str) -> dict[str, list[Token]]:
    """Rules by name, in order. A rule begins where a name is defined; line breaks do not matter."""
    starts = [place for place, token in enumerate(tokens) if token[0] == "define"]
    if not starts or starts[0] != 1:
        raise EbnfError("it does not begin with a rule: name ::= …")
    rules: dict[str, list[Token]] = {}
    for start, end in zip(starts, [*starts[1:], len(tokens) + 1], strict=True):
        kind, name, place = tokens[start - 1]
        if kind != "name":
            raise EbnfError(f"there is no name before ::= in {_line(text, tokens[start][2])}")
        if name in rules:
            raise EbnfError(f"the rule {name!r} is defined twice, again in {_line(text, place)}")
        rules[name] = tokens[start + 1 : end - 1]
    return rules


def _body(tokens: list[Token], names: dict[str, str], text: str) -> str:
    written: list[str] = []
    depth, repeatable = 0, False
    for kind, word, place in tokens:
        if kind == "repeat":
            if not repeatable:
                raise EbnfError(f"{word!r} in {_line(text, place)} has nothing to repeat")
            written.append(_repetition(word, _line(text, place)))
        elif kind == "name":
            if word not in names:
                raise EbnfError(f"there is no rule {word!r}, which {_line(text, place)} refers to")
            written.append(f" {names[word]}")
        elif kind == "literal":
            written.append(
                f' "{"".join(_write_character(letter, "") for letter in _letters(word[1:-1], text, place))}"'
            )
        elif kind == "characters":
            written.append(f" {_characters(word[1:-1], text, place)}")
        else:
            depth += (word == "(") - (word == ")")
            if depth < 0:
                break
            written.append(f" {_ANY if word == '.' else word}")
        repeatable = kind in ("name", "literal", "characters") or word in (")", ".")
    if depth:
        raise EbnfError(f"brackets do not match in the rule that ends in {_line(text, tokens[-1][2])}")
    return "".join(written).strip()


def _repetition(word: str, line: str) -> str:
    if word in "*+?":
        return word
    least, comma, most = (part.strip() for part in word[1:-1].partition(","))
    if not least and not most:
        raise EbnfError(f"{word!r} in {line} has no number")
    if max(int(least or 0), int(most or 0)) > MAX_REPETITIONS or (least and most and int(least) > int(most)):
        raise EbnfError(f"{word!r} in {line} is out of order, or above {MAX_REPETITIONS}")
    return f"{{{least or 0}{comma}{most}}}"


def _letters(source: str, text: str, place: int) -> list[str]:
    """The characters of a literal, escapes resolved."""
    letters, at = [], 0
    while at < len(source):
        if source[at] != "\\":
            letters.append(source[at])
            at += 1
            continue
        found = _ESCAPE.match(source, at)
        if found is None or (found[4] and found[4].isalnum() and found[4] not in _LETTERS):
            raise EbnfError(f"{source[at : at + 6]!r} in {_line(text, place)} is not a known escape")
        code = found[1] or found[2] or found[3]
        if code and (int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000):
            raise EbnfError(f"{found[0]!r} in {_line(text, place)} is no character")
        letters.append(chr(int(code, 16)) if code else _LETTERS.get(found[4], found[4]))
        at = found.end()
    return letters


def _characters(source: str, text: str, place: int) -> str:
    """A class of characters. A hyphen between two characters is a range, an escaped one is not."""
    negated = source.startswith("^")
    marked = re.sub(r"(?<!\\)((?:\\\\)*)-", "\\1\ue000", source[negated:])  # hyphens that are not escaped
    letters = _letters(marked, text, place)
    if not letters:
        raise EbnfError(f"the class of characters in {_line(text, place)} is empty")
    written, last = [], len(letters) - 1
    for at, letter in enumerate(letters):
        between = letter == "\ue000" and 0 < at < last
        written.append("-" if between else _write_character("-" if letter == "\ue000" else letter, "[]^-&~"))
    return f"[{'^' if negated else ''}{''.join(written)}]"


def _write_character(letter: str, special: str) -> str:
    """A character as llguidance's converter accepts it, in a literal or in a class of characters."""
    if letter in ('"', "\\"):
        return "\\" + letter
    plain = letter >= " " and letter != "\x7f" and letter not in special
    return letter if plain else f"\\x{ord(letter):02x}"


def _line(text: str, place: int) -> str:
    return f"line {text.count(chr(10), 0, place) + 1}"
