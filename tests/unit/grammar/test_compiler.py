"""Which texts a constraint takes, and what is said of one that cannot be compiled."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_models
from penstock.errors import InvalidRequest, ModelInvalid
from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler
from penstock.grammar.constraint_grammar import MAX_SOURCE_BYTES
from penstock.grammar.lark import lark_json, lark_literal
from penstock.tokenize.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SCHEMA = Constraint.json_schema(PERSON)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_file)


def taken(compiler: Compiler, tokenizer: Tokenizer, constraint: Constraint, text: str) -> str:
    """ "whole", "begun" or "no": whether the text is in the language, or can become one that is."""
    matcher = compiler.compile(constraint)
    tokens = tokenizer.encode(text, add_special=False)
    if matcher.validate_tokens(tokens) < len(tokens):
        return "no"
    matcher.consume_tokens(tokens)
    return "whole" if matcher.is_accepting() else "begun"


INDENTED = json.dumps({"name": "Ann", "tags": ["a", "b"]}, indent=8)
GRAMMAR = 'start: "<" word ">" | word\nword: /[a-z]+/'


@pytest.mark.parametrize(
    ("constraint", "text", "expected"),
    [
        (Constraint.json_object(), '{"a": [1, {"b": null}]}', "whole"),
        (Constraint.json_object(), "[1]", "no"),
        (Constraint.json_object(), '{"a": ', "begun"),
        (SCHEMA, '{"name":"Ann","tags":[]}', "whole"),
        (SCHEMA, '{"name": "Ann", "tags": ["a", "b"]}', "whole"),
        (SCHEMA, INDENTED, "whole"),
        (SCHEMA, '{"tags": [], "name": "Ann"}', "no"),  # in the schema's order
        (SCHEMA, '{"name": "Ann", "tags": ["c"]}', "no"),
        (SCHEMA, '{"name": "Ann", "tags": [], "more": 1}', "no"),
        (SCHEMA, '{"name": "Änn \\n', "begun"),
        (SCHEMA, ' {"name"', "no"),
        (SCHEMA, '{\n\n"name"', "no"),  # white space is bounded
        (SCHEMA, '{   "name"', "no"),
        (SCHEMA, "{\n" + " " * 32 + '"name"', "begun"),
        (SCHEMA, "{\n" + " " * 33, "no"),
        (Constraint.json_schema({"x-guidance": {"whitespace_pattern": "z+", "lenient": True}}), "{zz", "no"),
        (Constraint.json_schema(True), "[1, 2]", "whole"),
        (Constraint.json_schema({"type": "object", "minProperties": 1}), "{}", "no"),
        (Constraint.json_schema({"const": {"minProperties": 5}}), '{"minProperties": 5}', "whole"),
        (Constraint.json_schema({**PERSON, "minProperties": 2}), '{"name": "", "tags": []}', "whole"),
        (Constraint.json_schema({"type": "integer", "minimum": 3, "maximum": 12}), "12", "whole"),
        (Constraint.json_schema({"type": "integer", "minimum": 3, "maximum": 12}), "13", "no"),
        (Constraint.json_schema({"$defs": {"a": {"enum": [1]}}, "$ref": "#/$defs/a"}), "1", "whole"),
        (Constraint.regex(r"[a-z]+@[a-z]+\.(com|org)"), "ann@home.org", "whole"),
        (Constraint.regex(r"[a-z]+@[a-z]+\.(com|org)"), "ann@home.or", "begun"),
        (Constraint.regex("[a-z]"), "ab", "no"),
        (Constraint.choice(["yes", "no", "not sure"]), "no", "whole"),
        (Constraint.choice(["yes", "no", "not sure"]), "not", "begun"),
        (Constraint.choice(['a "b"\n\\', "/x/"]), 'a "b"\n\\', "whole"),
        (Constraint.choice(["yes", "no"]), "maybe", "no"),
        (Constraint.grammar(GRAMMAR), "<abc>", "whole"),
        (Constraint.grammar(GRAMMAR), "<abc", "begun"),
        (Constraint.grammar('root ::= "a"+ [0-9]{2}'), "aaa12", "whole"),
        (Constraint.grammar('root ::= "a"+ [0-9]{2}'), "aaa1a", "no"),
        (
            Constraint.grammar(f"start: {lark_literal('say: ')} value\nvalue: {lark_json(PERSON)}"),
            "say: " + INDENTED,
            "whole",
        ),
        (Constraint.grammar(f"start: {lark_literal('say: ')} value\nvalue: {lark_json(PERSON)}"), "say: {\n\n", "no"),
        (Constraint.grammar('{"grammars": [{"lark_grammar": "start: /a+/"}]}'), "aa", "whole"),
    ],
)
def test_texts(compiler: Compiler, tokenizer: Tokenizer, constraint: Constraint, text: str, expected: str) -> None:
    assert taken(compiler, tokenizer, constraint, text) == expected


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


MANY_AFTER_EACH = "start: " + " | ".join(f'"{letter}" more' for letter in "abcdefghijklmnopqrstuvwxyz")
MANY_AFTER_EACH += "\nmore: " + " | ".join(f'"{number}"' for number in range(3000))


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint.json_schema({"not": {"type": "string"}}), r'keywords that are not supported: \["not"\]'),
        (Constraint.json_schema({"if": {}, "then": {"type": "string"}}), r'\["if", "then"\]'),
        (Constraint.json_schema({"type": "array", "uniqueItems": True}), r'\["uniqueItems"\]'),
        (Constraint.json_schema({"type": "string", "format": "credit-card"}), "Unknown format: credit-card"),
        (Constraint.json_schema({"$ref": "https://example.com/schema"}), "https://example.com/schema"),
        (Constraint.json_schema({"oneOf": [{"minimum": 1}, {"maximum": 5}]}), "oneOf .* Use anyOf"),
        (Constraint.json_schema({"type": "text"}), "Invalid type: text"),
        (Constraint.json_schema({"items": [{"type": "object", "minProperties": 2}]}), "minProperties"),
        (Constraint.json_schema({"type": "array", "contains": {}}), r'\["contains"\]'),
        (Constraint.json_schema({"contains": {}, "minContains": 0, "maxContains": 1}), r'\["contains", "maxContains",'),
        (Constraint.json_schema({"unevaluatedProperties": False}), r'\["unevaluatedProperties"\]'),
        (Constraint.json_schema({"dependentSchemas": {"a": False}}), r'\["dependentSchemas"\]'),
        (Constraint.json_schema({"dependentSchemas": {"a": {"not": {"uniqueItems": False}}}}), "dependentSchemas"),
        (Constraint.json_schema({"type": "object", "dependentRequired": {"a": ["b"]}}), r'\["dependentRequired"\]'),
        (Constraint.json_schema({"type": "object", "propertyNames": {"maxLength": 3}}), r'\["propertyNames"\]'),
        (Constraint.json_schema(False), "not supported"),
        (Constraint.json_schema({"allOf": [{"type": "string"}, {"type": "integer"}]}), "Unsatisfiable"),
        (Constraint.json_schema({"$ref": "#"}), "no text that it allows"),
        (Constraint.json_schema(deep(200)), "recursion limit"),
        (Constraint("json_schema", "{"), "not JSON"),
        (Constraint("json_schema", "[1]"), "must be an object"),
        (Constraint("json_schema", "[" * 100_000), "nested too deeply"),
        (Constraint.regex("(a"), "cannot be used: unclosed group$"),
        (Constraint.regex("(?=a)b"), "cannot be used: look-around, [a-z, -]* is not supported$"),
        (Constraint.regex("a" * (MAX_SOURCE_BYTES + 1)), "longer than"),
        (Constraint.choice([]), "1 to 10000 entries"),
        (Constraint.choice(["a", ""]), "none of them empty"),
        (Constraint("choice", '"a"'), "list of texts"),
        (Constraint("choice", "a"), "not a JSON list"),
        (Constraint.grammar('start: ( "a"'), "Expected token"),
        (Constraint.grammar("start: nothing"), "nothing"),
        (Constraint.grammar('start: <nothing> "a"'), "unknown special token"),
        (Constraint.grammar('root ::= "a" | [0-9'), "'\\[0-9' in line 1 is not understood"),
        (Constraint.grammar("start: a\na[temperature=0.5]: /x*/"), "temperature of a rule is not supported"),
        (Constraint.grammar('{"grammars": 1}'), "expected a sequence"),
        (Constraint.grammar(MANY_AFTER_EACH), "it is too complex"),
    ],
)
def test_errors_say_what_is_wrong(compiler: Compiler, constraint: Constraint, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        compiler.compile(constraint)
    assert caught.value.param == f"constraint.{constraint.kind}"
    assert len(caught.value.message) < 500


NEUTRAL: dict[str, Any] = {
    "uniqueItems": False,
    "not": False,
    "unevaluatedProperties": True,
    "unevaluatedItems": {},
    "propertyNames": {},
    "contains": {"type": "string"},
    "minContains": 0,
    "if": {"type": "null"},
    "then": True,
    "dependentRequired": {"a": []},
    "dependentSchemas": {"a": {}},
    "dependencies": {},
    "$dynamicAnchor": "here",
    "$recursiveAnchor": False,
}


@pytest.mark.parametrize("keyword", [{key: value} for key, value in NEUTRAL.items() if key != "contains"] + [NEUTRAL])
def test_keywords_that_say_nothing_are_left_out(
    compiler: Compiler, tokenizer: Tokenizer, keyword: dict[str, Any]
) -> None:
    inner = {**PERSON, **keyword, "$defs": {"one": {"enum": ["a"], **keyword}}, "anyOf": [{}, keyword]}
    schema = {"type": "array", "items": inner, "additionalItems": keyword, **keyword}
    for constraint in (Constraint.json_schema(schema), Constraint.grammar(f"start: {lark_json(schema)}")):
        assert taken(compiler, tokenizer, constraint, f"[{INDENTED}]") == "whole"
        assert taken(compiler, tokenizer, constraint, '[{"name": "", "tags": ["c"]}]') == "no"
    assert schema["items"] == inner
    assert all(schema[key] == value for key, value in keyword.items())  # it is the client's


def test_a_property_may_be_called_like_a_keyword(compiler: Compiler, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"uniqueItems": False, "not": False}, "additionalProperties": True}
    assert taken(compiler, tokenizer, Constraint.json_schema(schema), '{"other": 1}') == "whole"
    assert taken(compiler, tokenizer, Constraint.json_schema(schema), '{"not": 1}') == "no"
    assert taken(compiler, tokenizer, Constraint.json_schema({"const": {"not": False}}), '{"not": false}') == "whole"


def test_many_choices(compiler: Compiler, tokenizer: Tokenizer) -> None:
    constraint = Constraint.choice([f"number {number}" for number in range(10_000)])
    assert taken(compiler, tokenizer, constraint, "number 999") == "whole"  # and may go on
    assert taken(compiler, tokenizer, constraint, "number 9998") == "whole"
    assert taken(compiler, tokenizer, constraint, "number 10000") == "no"


def length(compiler: Compiler, tokenizer: Tokenizer, constraint: Constraint, text: str) -> int:
    """How many tokens of the text a matcher takes, one by one as they are drawn."""
    matcher = compiler.compile(constraint)
    tokens = tokenizer.encode(text, add_special=False)
    return next((place for place, token in enumerate(tokens) if not matcher.consume_token(token)), len(tokens))


@pytest.mark.parametrize(
    "rules", ['s: s s | "x"', 's: "x" s s | "x" s | "x"', 's: a | b\na: b a | a b | "x"\nb: a b | b a | "x"']
)
def test_what_grows_with_its_text_is_not_followed_forever(compiler: Compiler, tokenizer: Tokenizer, rules: str) -> None:
    """Each of its masks takes longer than the one before. Be it the answer alone or what follows reasoning."""
    lark = "start: s\n" + rules
    nested = json.dumps({"grammars": [{"lark_grammar": "start: @asked"}, {"name": "asked", "lark_grammar": lark}]})
    for source in (lark, nested):
        assert 10 < length(compiler, tokenizer, Constraint.grammar(source), "x" * 400) < 120


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Constraint.grammar('start: e\ne: e "+" e | "(" e ")" | /[0-9]+/'), "+".join(["(1)"] * 30)),
        (Constraint.grammar('start: line start | line\nline: "- " /[a-z]+/ "\\n"'), "- a\n" * 100),
        (Constraint.grammar('root ::= line+\nline ::= "- " [a-z]+ "\\n"'), "- a\n" * 1000),
        (Constraint.json_object(), '{"a": ' + "[" * 500 + "]" * 500 + "}"),
        (
            Constraint.json_schema({"properties": {f"p{place}": {} for place in range(490)}, "type": "object"}),
            json.dumps({f"p{place}": place for place in range(0, 490, 7)}),
        ),
        (
            Constraint.grammar(
                "start: value\nvalue: " + lark_json({"properties": {f"p{place}": {} for place in range(490)}})
            ),
            json.dumps({f"p{place}": place for place in range(0, 490, 7)}),
        ),
        (Constraint.json_schema({"type": "string", "maxLength": 5000}), '"' + "ab " * 1600 + '"'),
        (Constraint.json_schema({"enum": [f"value {place}" for place in range(5000)]}), '"value 4999"'),
    ],
)
def test_what_does_not_is(compiler: Compiler, tokenizer: Tokenizer, constraint: Constraint, text: str) -> None:
    assert length(compiler, tokenizer, constraint, text) == len(tokenizer.encode(text, add_special=False))


@pytest.mark.parametrize(
    ("expression", "usable"),
    [("a{1000000}", False), ("[ab]{2,50001}", False), (f"a{{{'9' * 5000}}}", False), (r"[{60000}]\{60000}a{3}", True)],
)
def test_repetitions_of_a_regular_expression_are_bounded(compiler: Compiler, expression: str, usable: bool) -> None:
    if usable:
        compiler.compile(Constraint.regex(expression))
        return
    with pytest.raises(InvalidRequest, match="more than 50000 repetitions") as caught:
        compiler.compile(Constraint.regex(expression))
    assert caught.value.param == "constraint.regex"


def test_a_vocabulary_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        Compiler(None, 300, ()).compile(Constraint.json_object())
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(ModelInvalid, match="cannot be constrained"):
        Compiler(broken, 300, ()).compile(Constraint.json_object())


def test_a_vocabulary_without_an_end_can_be_constrained(tokenizer_file: Path) -> None:
    matcher = Compiler(tokenizer_file, tiny_models.VOCAB + 20, ()).compile(Constraint.choice(["a"]))
    assert len(matcher.compute_bitmask()) * 8 >= tiny_models.VOCAB + 20
