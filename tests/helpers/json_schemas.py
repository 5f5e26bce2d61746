"""JSON schemas for constrained output: hand-picked and random."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]


def closed(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TREE: Schema = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
PERSON = closed(
    name={"type": "string", "minLength": 1, "maxLength": 30},
    age={"type": "integer", "minimum": 0, "maximum": 120},
    email={"type": "string", "format": "email"},
    address=closed(street={"type": "string", "maxLength": 30}, zip={"type": "string", "pattern": "^[0-9]{5}$"}),
    tags={"type": "array", "items": {"enum": ["new", "vip", "gone"]}, "minItems": 1, "maxItems": 3},
)
PICKED: list[Schema] = [
    PERSON,
    TREE,
    closed(a=closed(b=closed(c=closed(d=closed(e={"type": "boolean"}))))),
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}, "maxItems": 3},
    closed(color={"enum": ["red", "green", "blue"]}, size={"enum": [1, 2, 3.5, None, True, "XL"]}),
    closed(value={"const": {"a": [1, "two", None]}}),
    closed(id={"type": "string", "format": "uuid"}, day={"type": "string", "format": "date"}),
    closed(at={"type": "string", "format": "date-time"}, host={"type": "string", "format": "ipv4"}),
    closed(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"}),
    closed(hex={"type": "string", "pattern": "^[0-9a-f]*$"}),
    closed(x={"type": "number", "minimum": -1.5, "maximum": 1.5}, y={"type": "number", "exclusiveMinimum": 0}),
    closed(n={"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20}),
    closed(m={"type": "integer", "multipleOf": 7}),
    closed(price={"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 1000}),
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}}, "additionalProperties": False},
    closed(value={"type": ["string", "null"]}, other={"type": ["integer", "boolean"]}),
    {"anyOf": [closed(cat={"type": "string", "maxLength": 8}), closed(dog={"type": "integer"})]},
    {
        "oneOf": [
            closed(kind={"const": "circle"}, radius={"type": "number", "minimum": 0}),
            closed(kind={"const": "square"}, side={"type": "number", "minimum": 0}),
        ]
    },
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"maxProperties": 1}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 9}]},
    {"type": "array", "prefixItems": [{"type": "string", "maxLength": 5}, {"type": "integer"}], "items": False},
    {"$defs": {"one": closed(k={"type": "integer"})}, "type": "array", "items": {"$ref": "#/$defs/one"}, "maxItems": 2},
    closed(**{'quo"te': {"type": "boolean"}, "back\\slash": {"type": "null"}, "grüße 👋": {"enum": ["ä", "日本"]}}),
    {"type": "string", "minLength": 3, "maxLength": 10},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["only"]},
    {"const": None},
    closed(),
    {"type": "object"},
    {},
    {"type": "string", "enum": ["a\"b", "c\\d", "e/f", "\u2028", "😀"]},
    closed(long={"type": "string", "minLength": 40, "maxLength": 60}),
    {"definitions": {"item": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
     "type": "array", "items": {"$ref": "#/definitions/item"}, "minItems": 1, "maxItems": 3},
]  # fmt: skip


def random_schemas(count: int, seed: int) -> list[Schema]:
    """So many random schemas, three levels deep at most; the same ones for the same seed."""
    draw = _Draw(seed)
    return [draw.whole() for _ in range(count)]


class _Draw(random.Random):
    def whole(self) -> Schema:
        return {"$defs": {"part": self.simple()}, **self.nested(3)}

    def some(self, **keywords: Any) -> Schema:
        """Each of the keywords, or not."""
        return {name: value for name, value in keywords.items() if self.random() < 0.6}

    def scalar(self) -> Any:
        text = "".join(self.choices('ab z"\\/\n\tä日😀\x7f', k=self.randint(0, 5)))
        return self.choice([self.randint(-9, 99), self.random() < 0.5, None, text, text])

    def simple(self) -> Schema:
        low, high = self.randint(-99, 0), self.randint(1, 999)
        return self.choice(
            [
                {"type": "string", **self.some(minLength=self.randint(0, 2), maxLength=self.randint(3, 8))},
                {"type": "string", "pattern": self.choice(_PATTERNS)},
                {"type": "string", "format": self.choice(_FORMATS)},
                {"type": "integer", **self.some(minimum=low, maximum=high)},
                {"type": "integer", "multipleOf": self.choice([2, 5, 12]), **self.some(minimum=low)},
                {"type": "number", **self.some(minimum=low, exclusiveMaximum=high)},
                {"type": self.choice(["boolean", "null"])},
                {"enum": [self.scalar() for _ in range(self.randint(1, 4))]},
                {"const": self.scalar()},
            ]
        )

    def inner(self, depth: int) -> Schema:
        if self.random() < 0.1:
            return {"$ref": "#/$defs/part"}
        return self.simple() if depth == 0 or self.random() < 0.5 else self.nested(depth)

    def nested(self, depth: int) -> Schema:
        several = [self.inner(depth - 1) for _ in range(self.randint(1, 3))]
        bounds = self.some(minItems=self.randint(0, 2))
        properties = {name: self.inner(depth - 1) for name in self.sample(_NAMES, self.randint(1, 4))}
        required = self.sample(_NAMES, self.randint(0, 3))
        return self.choice(
            [
                {"type": "array", "items": several[0], **bounds, "maxItems": self.randint(2, 5)},
                {"type": "array", "prefixItems": several, "items": False},
                {"anyOf": several},
                closed(**properties),
                {"type": "object", "properties": properties, "additionalProperties": False},
                {"type": "object", "properties": properties, "required": required, "additionalProperties": several[0]},
            ]
        )


_PATTERNS = ["^[a-z]+$", "^(yes|no)$", "^[0-9]{2,4}$", "^[A-Z][a-z]{1,6}( [A-Z][a-z]{1,6})?$", "x", r"^\d+(\.\d+)?$"]
_FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "hostname"]
_NAMES = ["name", "id", "größe", "a b", "items", 'q"t']
