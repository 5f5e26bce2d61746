"""Tables of valid and invalid values per field, checked against both the parser and /openapi.json."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from msgspec import Struct
from pydantic import BaseModel

from penstock.errors import InvalidRequest
from penstock.http import openapi_bodies
from penstock.http.parse.schema import parse

NO_INTEGERS = ("1", True, 1.5, [], {})
NO_NUMBERS = ("1", True, [], {})
NO_BOOLEANS = ("true", 1, 0, [], {})
NO_STRINGS = (1, True, [], {})

Table = dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]  # field -> valid values, invalid values

# `context` and `documents`, as several APIs have them.
CONTEXT_FIELDS: Table = {
    "context": (
        (
            {},
            {"budget": {"total": 100, "output": 10}, "trace": True},
            {"history": "keep_first", "keep_first": 2},
            {"history": "summarize", "summary_model": "m", "summary_tokens": 5, "rank": "embedding", "rank_model": "m"},
            {"rank": "reranker"},
            {"placement": "system", "show_schema": False},
        ),
        ({"budget": {"total": 0}}, {"budgets": {}}, {"history": "x"}, {"rank": 1}, {"trace": 1}, [], "auto", True),
    ),
    "documents": (
        ([], ["a"], [{"text": "a"}], [{"id": "a", "text": "b", "title": "c", "score": 0.5, "pinned": True}]),
        ([""], [1], [{"id": "a"}], [{"text": ""}], [{"text": "a", "score": "1"}], [{"text": "a"}] * 1025, {}, "a"),
    ),
}


def rows(table: Table, place: int) -> list[Any]:
    """Pytest parameters (field, value): the valid values for place 0, the invalid ones for place 1."""
    return [
        pytest.param(field, value, id=f"{field}-{number}")
        for field, values in table.items()
        for number, value in enumerate(values[place])
    ]


@cache
def components() -> dict[str, Any]:
    return openapi_bodies.components()


@cache
def validator(schema: type[BaseModel] | type[Struct]) -> jsonschema_rs.Validator:
    """Validator of the schema as /openapi.json has it."""
    name = f"#/components/schemas/{schema.__name__}"
    return jsonschema_rs.validator_for({"$ref": name, "components": {"schemas": components()}})


class Checked:
    """A body schema and its /openapi.json counterpart; both must agree on each body."""

    def __init__(self, schema: type[BaseModel]) -> None:
        self.schema = schema
        self.validator = validator(schema)

    def takes(self, body: dict[str, Any]) -> Any:
        assert self.validator.is_valid(body), "/openapi.json says otherwise"
        return parse(self.schema, json.dumps(body).encode())

    def refuses(self, body: dict[str, Any], field: str) -> InvalidRequest:
        with pytest.raises(InvalidRequest) as caught:
            parse(self.schema, json.dumps(body).encode())
        param = caught.value.param or ""
        assert param == field or param.startswith((f"{field}.", f"{field}["))
        assert param in caught.value.message
        assert not self.validator.is_valid(body), "/openapi.json says otherwise"
        return caught.value


def assert_matches_schema(answer: type[Struct], data: Any) -> None:
    """`data`, as sent, is valid by the schema of `answer` in /openapi.json."""
    validator(answer).validate(data)
