"""JSON schemas as Lark rules for arguments in Gemma's notation: `{city:<|"|>Oslo<|"|>,days:2}`.

Numbers, booleans and null are JSON, so llguidance's own rules for JSON enforce their keywords. `rules_of_schema`
rejects keywords that it cannot express; `drop_inexpressible` removes them.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidRequest
from penstock.grammar.lark import lark_json, lark_literal

_ANNOTATIONS = {
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions", "strict",
}  # fmt: skip
_NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_SUPPORTED = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items", "minItems", "maxItems"},
    "string": {"type", "minLength", "maxLength"},
    "integer": {"type", *_NUMERIC},
    "number": {"type", *_NUMERIC},
    "boolean": {"type"},
    "null": {"type"},
}
_ALL_TYPES = ("string", "number", "boolean", "null", "array", "object")


def rules_of_schema(name: str, schema: dict[str, Any], quote: str) -> list[str]:
    """Lark rules for a value of this schema; the first is called `name`. `quote` is the quote in Lark's notation."""
    writer = _RuleWriter(name, schema, quote)
    body = writer.value(schema)
    return [f"{name}: {body}", *writer.rules]


class _RuleWriter:
    def __init__(self, name: str, root: dict[str, Any], quote: str) -> None:
        self.name = name
        self.root = root
        self.quote = quote
        self.rules: list[str] = []
        self.named: dict[str, str] = {}  # rules of referenced schemas, by reference
        self.count = 0

    def value(self, schema: Any) -> str:
        """An expression for a value of this schema."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, dict):
            raise _unsupported_error(str(schema))
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "const" in schema:
            return self._literal(schema["const"])
        if "enum" in schema:
            return self._either([self._literal(value) for value in schema["enum"]])
        if "anyOf" in schema:
            _check(schema, {"anyOf", "type"})
            return self._either([self.value(option) for option in schema["anyOf"]])
        kind = schema.get("type", _implied_type(schema))
        if isinstance(kind, list | tuple):
            parts = [{**_keywords_of_type(schema, one), "type": one} for one in kind]
            return self._either([self.value(part) for part in parts])
        return self._of_type(kind, schema)

    def _of_type(self, kind: Any, schema: dict[str, Any]) -> str:
        if kind not in _SUPPORTED:
            raise _unsupported_error(f"type {kind!r}")
        _check(schema, _SUPPORTED[kind])
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return self._string(schema.get("minLength", 0), schema.get("maxLength", ""))
        return self._rule(lark_json({key: value for key, value in schema.items() if key not in _ANNOTATIONS}))

    def _object(self, schema: dict[str, Any]) -> str:
        """Members in the schema's order; those that are not required may be left out."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if missing := [name for name in required if name not in properties]:
            raise _unsupported_error(f"required without properties: {missing[0]!r}")
        # From the last property to the first: the rest of an object that has no member yet, and of one that has.
        first, later = "", ""
        for name, inner in reversed(properties.items()):
            member = self._rule(f"{lark_literal(name + ':')} {self.value(inner)}")
            begun = f"{member} {later}"
            if name in required:
                first, later = begun, self._rule(f'"," {begun}')
            else:
                first = self._either([begun, first]) if first else f"({begun})?"
                later = f'("," {member})? {later}'
            first, later = self._rule(first), self._rule(later)
        return self._rule(f'"{{" {first} "}}"')

    def _array(self, schema: dict[str, Any]) -> str:
        item = self.value(schema.get("items", {}))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[" "]"'
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return self._rule(f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"')

    def _string(self, least: int, most: int | str) -> str:
        span = f"{{{least},{most}}}" if least or most != "" else "*"
        if self.quote.startswith("<"):  # a token, which free text cannot contain
            return self._rule(rf"{self.quote} /(.|\n){span}/ {self.quote}")
        if span != "*":
            raise _unsupported_error("minLength and maxLength")
        self.count += 1
        text = f"{self.name}_text_{self.count}"
        self.rules.append(rf"{text}[lazy]: /(.|\n)*/ {self.quote}")
        return self._rule(f"{self.quote} {text}")

    def _anything(self) -> str:
        if "any" not in self.named:
            self.named["any"] = name = f"{self.name}_any"
            kinds = [self._string(0, ""), *(lark_json({"type": kind}) for kind in ("number", "boolean", "null"))]
            listed = f'"[" ({name} ("," {name})*)? "]"'
            member = f'/[a-zA-Z_][a-zA-Z0-9_]*/ ":" {name}'
            self.rules.append(f'{name}: {" | ".join(kinds)} | {listed} | "{{" ({member} ("," {member})*)? "}}"')
        return self.named["any"]

    def _reference(self, reference: str) -> str:
        if reference not in self.named:
            target = _target(self.root, reference)
            if target is None:
                raise _unsupported_error(f"$ref {reference[:64]!r}")
            self.named[reference] = name = f"{self.name}_ref_{len(self.named)}"
            self.rules.append(f"{name}: {self.value(target)}")
        return self.named[reference]

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote} {lark_literal(value)} {self.quote}" if value else f"{self.quote} {self.quote}"
        return lark_json({"const": value})

    def _either(self, options: list[str]) -> str:
        return self._rule(" | ".join(options))

    def _rule(self, body: str) -> str:
        self.count += 1
        name = f"{self.name}_{self.count}"
        self.rules.append(f"{name}: {body}" if body.strip() else f'{name}: ""')
        return name


def drop_inexpressible(schema: dict[str, Any], *, bounded_strings: bool) -> tuple[dict[str, Any], set[str]]:
    """The schema without the keywords that `rules_of_schema` rejects, and their names. `bounded_strings`: the quote is
    a token, so that the length of strings can be bounded."""
    dropper = _KeywordDropper(schema, bounded_strings)
    return dropper.schema(schema), dropper.dropped


class _KeywordDropper:
    def __init__(self, root: dict[str, Any], bounded_strings: bool) -> None:
        self.root = root
        self.unbounded = set() if bounded_strings else {"minLength", "maxLength"}
        self.dropped: set[str] = set()

    def schema(self, schema: Any) -> dict[str, Any]:
        if not isinstance(schema, dict):
            if schema is not True:
                self.dropped.add("false")
            return {}
        defined = {
            word: {name: self.schema(inner) for name, inner in schema[word].items()}
            for word in ("$defs", "definitions")
            if isinstance(schema.get(word), dict)
        }
        return {**self._value(schema), **defined}

    def _value(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in schema:
            found = isinstance(schema["$ref"], str) and _target(self.root, schema["$ref"]) is not None
            return self._only(schema, {"$ref"} if found else set())
        if "const" in schema or "enum" in schema:
            return {word: schema[word] for word in ("const", "enum") if word in schema}
        if isinstance(branches := schema.get("anyOf", schema.get("oneOf")), list):
            self._only(schema, {"anyOf" if "anyOf" in schema else "oneOf", "type"})
            return {"anyOf": [self.schema(branch) for branch in branches]}
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and not schema.keys() - {"allOf", *_ANNOTATIONS}:
            return self.schema(parts[0])
        kind = schema.get("type", _implied_type(schema))
        kinds = kind if isinstance(kind, list | tuple) else [kind]
        known = {word for one in kinds if isinstance(one, str) for word in _SUPPORTED.get(one, ())}
        return self._members(self._only(schema, (known | {"type"}) - self.unbounded))

    def _members(self, schema: dict[str, Any]) -> dict[str, Any]:
        properties = schema.get("properties")
        if isinstance(properties, dict):
            schema["properties"] = {name: self.schema(inner) for name, inner in properties.items()}
        if isinstance(required := schema.get("required"), list):
            schema["required"] = [name for name in required if name in (properties or {})]
            if len(schema["required"]) < len(required):
                self.dropped.add("required without properties")
        if "items" in schema:
            schema["items"] = self.schema(schema["items"])
        return schema

    def _only(self, schema: dict[str, Any], known: set[str]) -> dict[str, Any]:
        self.dropped |= schema.keys() - known - _ANNOTATIONS
        return {word: value for word, value in schema.items() if word in known}


def _target(root: Any, reference: str) -> Any:
    """The schema that a reference points to; None: there is none."""
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        root = root.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


def _implied_type(schema: dict[str, Any]) -> Any:
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema else _ALL_TYPES


def _keywords_of_type(schema: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The schema without keywords of other types than `kind`."""
    others = {word for words in _SUPPORTED.values() for word in words} - _SUPPORTED.get(kind, set())
    return {word: value for word, value in schema.items() if word not in others}


def _check(schema: dict[str, Any], known: set[str]) -> None:
    if unknown := [word for word in schema if word not in known | _ANNOTATIONS]:
        raise _unsupported_error(unknown[0])


def _unsupported_error(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"tools: the parameters have {what}, which is not supported in this model's notation of calls", param="tools"
    )
