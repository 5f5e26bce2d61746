"""JSON schemas as grammars of Gemma's notation of arguments: `{city:<|"|>Oslo<|"|>,days:2}`.

It is JSON but for keys without quotes and quotes of its own around texts. What a schema says of numbers is left to the
grammar of JSON, which writes them alike; keywords that cannot be said here are refused, or left out by `relaxed`.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidRequest
from penstock.grammar import json_rule, literal

_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions", "strict"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_KNOWN = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items", "minItems", "maxItems"},
    "string": {"type", "minLength", "maxLength"},
    "integer": {"type", *_NUMBERS},
    "number": {"type", *_NUMBERS},
    "boolean": {"type"},
    "null": {"type"},
}
_ANY = ("string", "number", "boolean", "null", "array", "object")


def rules(name: str, schema: dict[str, Any], quote: str) -> list[str]:
    """Lark rules, the first of which is called `name`. `quote` is the quote in Lark's notation."""
    writer = _Writer(name, schema, quote)
    body = writer.value(schema)
    return [f"{name}: {body}", *writer.rules]


class _Writer:
    def __init__(self, name: str, root: dict[str, Any], quote: str) -> None:
        self.name = name
        self.root = root
        self.quote = quote
        self.rules: list[str] = []
        self.named: dict[str, str] = {}  # rules of what schemas refer to, by reference
        self.count = 0

    def value(self, schema: Any) -> str:
        """An expression for one value."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, dict):
            raise _refused(str(schema))
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "const" in schema:
            return self._literal(schema["const"])
        if "enum" in schema:
            return self._either([self._literal(value) for value in schema["enum"]])
        if "anyOf" in schema:
            _check(schema, {"anyOf", "type"})
            return self._either([self.value(option) for option in schema["anyOf"]])
        kind = schema.get("type", _guessed(schema))
        if isinstance(kind, list | tuple):
            parts = [{**_only(schema, one), "type": one} for one in kind]
            return self._either([self.value(part) for part in parts])
        return self._of_type(kind, schema)

    def _of_type(self, kind: Any, schema: dict[str, Any]) -> str:
        if kind not in _KNOWN:
            raise _refused(f"type {kind!r}")
        _check(schema, _KNOWN[kind])
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return self._string(schema.get("minLength", 0), schema.get("maxLength", ""))
        return self._rule(json_rule({key: value for key, value in schema.items() if key not in _NOTES}))

    def _object(self, schema: dict[str, Any]) -> str:
        """Members in the schema's order; those that are not required may be left out."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if missing := [name for name in required if name not in properties]:
            raise _refused(f"required without properties: {missing[0]!r}")
        # From the last to the first: what may follow if nothing was written yet, and if something was.
        first, later = "", ""
        for name, inner in reversed(properties.items()):
            member = self._rule(f"{literal(name + ':')} {self.value(inner)}")
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
        if self.quote.startswith("<"):  # a token: free text cannot have it
            return self._rule(rf"{self.quote} /(.|\n){span}/ {self.quote}")
        if span != "*":
            raise _refused("minLength and maxLength")
        self.count += 1
        text = f"{self.name}_text_{self.count}"
        self.rules.append(rf"{text}[lazy]: /(.|\n)*/ {self.quote}")
        return self._rule(f"{self.quote} {text}")

    def _anything(self) -> str:
        if "any" not in self.named:
            self.named["any"] = name = f"{self.name}_any"
            kinds = [self._string(0, ""), *(json_rule({"type": kind}) for kind in ("number", "boolean", "null"))]
            listed = f'"[" ({name} ("," {name})*)? "]"'
            member = f'/[a-zA-Z_][a-zA-Z0-9_]*/ ":" {name}'
            self.rules.append(f'{name}: {" | ".join(kinds)} | {listed} | "{{" ({member} ("," {member})*)? "}}"')
        return self.named["any"]

    def _reference(self, reference: str) -> str:
        if reference not in self.named:
            target = _target(self.root, reference)
            if target is None:
                raise _refused(f"$ref {reference[:64]!r}")
            self.named[reference] = name = f"{self.name}_ref_{len(self.named)}"
            self.rules.append(f"{name}: {self.value(target)}")
        return self.named[reference]

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote} {literal(value)} {self.quote}" if value else f"{self.quote} {self.quote}"
        return json_rule({"const": value})

    def _either(self, options: list[str]) -> str:
        return self._rule(" | ".join(options))

    def _rule(self, body: str) -> str:
        self.count += 1
        name = f"{self.name}_{self.count}"
        self.rules.append(f"{name}: {body}" if body.strip() else f'{name}: ""')
        return name


def relaxed(schema: dict[str, Any], *, bounded_strings: bool) -> tuple[dict[str, Any], set[str]]:
    """A schema without what `rules` would refuse, and what was left out. `bounded_strings`: the quote is a token, so
    that strings can have bounds."""
    relaxing = _Relaxing(schema, bounded_strings)
    return relaxing.schema(schema), relaxing.left_out


class _Relaxing:
    def __init__(self, root: dict[str, Any], bounded_strings: bool) -> None:
        self.root = root
        self.unbounded = set() if bounded_strings else {"minLength", "maxLength"}
        self.left_out: set[str] = set()

    def schema(self, schema: Any) -> dict[str, Any]:
        if not isinstance(schema, dict):
            if schema is not True:
                self.left_out.add("false")
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
        if isinstance(parts, list) and len(parts) == 1 and not schema.keys() - {"allOf", *_NOTES}:
            return self.schema(parts[0])
        kind = schema.get("type", _guessed(schema))
        kinds = kind if isinstance(kind, list | tuple) else [kind]
        known = {word for one in kinds if isinstance(one, str) for word in _KNOWN.get(one, ())}
        return self._members(self._only(schema, (known | {"type"}) - self.unbounded))

    def _members(self, schema: dict[str, Any]) -> dict[str, Any]:
        properties = schema.get("properties")
        if isinstance(properties, dict):
            schema["properties"] = {name: self.schema(inner) for name, inner in properties.items()}
        if isinstance(required := schema.get("required"), list):
            schema["required"] = [name for name in required if name in (properties or {})]
            if len(schema["required"]) < len(required):
                self.left_out.add("required without properties")
        if "items" in schema:
            schema["items"] = self.schema(schema["items"])
        return schema

    def _only(self, schema: dict[str, Any], known: set[str]) -> dict[str, Any]:
        self.left_out |= schema.keys() - known - _NOTES
        return {word: value for word, value in schema.items() if word in known}


def _target(root: Any, reference: str) -> Any:
    """What a reference within the schema leads to; None: nothing."""
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        root = root.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


def _guessed(schema: dict[str, Any]) -> Any:
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema else _ANY


def _only(schema: dict[str, Any], kind: Any) -> dict[str, Any]:
    """What it says of one of its types."""
    others = {word for words in _KNOWN.values() for word in words} - _KNOWN.get(kind, set())
    return {word: value for word, value in schema.items() if word not in others}


def _check(schema: dict[str, Any], known: set[str]) -> None:
    if unknown := [word for word in schema if word not in known | _NOTES]:
        raise _refused(unknown[0])


def _refused(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"tools: the parameters have {what}, which is not supported in this model's notation of calls", param="tools"
    )
