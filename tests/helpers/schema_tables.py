"""Tables of what each field of a body takes and what it does not, and the checks that go with them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from msgspec import Struct
from pydantic import BaseModel

from penstock.errors import InvalidRequest
from penstock.http.openapi import schemas
from penstock.http.parse.schema import parse

NO_INTEGERS = ("1", True, 1.5, [], {})
NO_NUMBERS = ("1", True, [], {})
NO_BOOLEANS = ("true", 1, 0, [], {})
NO_STRINGS = (1, True, [], {})

Table = dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]  # field -> what is taken, what is not


def rows(table: Table, place: int) -> list[Any]:
    """As parameters of a test: field and value. Place 0: those that are taken; 1: those that are not."""
    return [
        pytest.param(field, value, id=f"{field}-{number}")
        for field, values in table.items()
        for number, value in enumerate(values[place])
    ]


@cache
def components() -> dict[str, Any]:
    return schemas.components()


@cache
def validator(schema: type[BaseModel] | type[Struct]) -> jsonschema_rs.Validator:
    """By /openapi.json."""
    name = f"#/components/schemas/{schema.__name__}"
    return jsonschema_rs.validator_for({"$ref": name, "components": {"schemas": components()}})


class Checked:
    """A schema, and what the document says of it."""

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


def described(answer: type[Struct], data: Any) -> None:
    """What is sent is what the document says of it."""
    validator(answer).validate(data)
