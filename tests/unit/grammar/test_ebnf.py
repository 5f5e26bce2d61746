"""EBNF in the notation of llama.cpp: which texts are taken, and what is said of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler
from penstock.grammar.ebnf import is_ebnf
from penstock.tokenize.tokenizer import Tokenizer

# In the style of the examples that come with llama.cpp.
JSON = r"""
# Any JSON object.
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_file)


def takes(compiler: Compiler, tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    matcher = compiler.compile(Constraint.grammar(grammar))
    tokens = tokenizer.encode(text, add_special=False)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("grammar", "taken", "refused"),
    [
        ('root ::= "a" | "b"', "b", "c"),
        ('root ::= "a"\n  | "b"\nother ::= "c"', "b", "c"),
        ('root ::= (\n "a" |\n "b" )', "b", "c"),
        ('# c\nroot ::= "a" # "b"\n# e', "a", "b"),
        ("root ::= .", "\n", "ab"),
        ('root ::= [^"]+', "a\nb", '"'),
        (r'root ::= "\x41" "\u0042" "\U00000043"', "ABC", "AB"),
        (r"root ::= [\u0041-\u0043]+", "ABC", "D"),
        (r'root ::= "\u00fc" "é" [ü-ÿ]', "üéü", "üee"),
        (r'root ::= "\"" "/" "\\" "\n"', '"/\\\n', '"/\\n'),
        (r"root ::= [a\-c]+", "a-c", "b"),
        ("root ::= [-a]+", "a-", "b"),
        (r"root ::= [\]\\^&~a]+", "]\\^&~a", "b"),
        ("root ::= [.*+?(){}|$/]+", ".*+$/", "a"),
        ('root ::= "%json {}"', "%json {}", "{}"),
        ('root ::= ("a" "b"){2,3}', "ababab", "ab"),
        ('root ::= "a"{2}', "aa", "aaa"),
        ('root ::= "a"{ 2, }', "aaa", "a"),
        ('root ::= "a"{,2}', "aa", "aaa"),
        ('root ::= my-rule My_Rule\nmy-rule ::= "a"\nMy_Rule ::= "b"', "ab", "ba"),
        ('root ::= start\nstart ::= "a"', "a", "b"),
        ('root ::= list\nlist ::= list "x" | "x"', "xxx", "y"),
        ('root ::= "" | "a"', "a", "b"),
        (JSON, '{"a": [1.5e3, {"b": null}, "\\u00fc\\n"]}', '{"a": 01}'),
    ],
)
def test_texts(compiler: Compiler, tokenizer: Tokenizer, grammar: str, taken: str, refused: str) -> None:
    assert takes(compiler, tokenizer, grammar, taken)
    assert not takes(compiler, tokenizer, grammar, refused)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('x ::= "a"', "no rule 'root'"),
        ("root ::= x", "no rule 'x', which line 1 refers to"),
        ('root ::= "a"\nroot ::= "b"', "defined twice, again in line 2"),
        ('"a"\nroot ::= "b"', "does not begin with a rule"),
        ('root ::= "a" "b" ::= "c"', "no name before ::= in line 1"),
        ("root ::= 'a'", "in line 1 is not understood"),
        ("root ::= <think>", "in line 1 is not understood"),
        ('root ::= "a" (= "b")', "in line 1 is not understood"),
        ('root ::= "a\n"', "in line 1 is not understood"),
        ('root ::= ("a"', "brackets do not match in the rule that ends in line 1"),
        ('root ::= "a")', "brackets do not match"),
        ("root ::= *", "has nothing to repeat"),
        ('root ::= "a"*?', "has nothing to repeat"),
        ('root ::= "a"{}', "has no number"),
        ('root ::= "a"{3,2}', "out of order"),
        ('root ::= "a"{99999}', "above 10000"),
        (r'root ::= "\q"', "is not a known escape"),
        (r'root ::= "\ud800"', "is no character"),
        ("root ::= []", "is empty"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested too deeply"),
    ],
)
def test_errors_say_what_is_wrong(compiler: Compiler, grammar: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        compiler.compile(Constraint.grammar(grammar))


def test_lark_is_left_alone() -> None:
    assert not is_ebnf('start: "a ::= b"')
    assert not is_ebnf('%llguidance {}\nstart: "a"')
