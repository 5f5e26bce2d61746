"""The schemas of all APIs stand side by side in one document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema

from penstock.http import openapi_bodies
from penstock.http.openapi import schemas


def test_no_two_schemas_have_the_same_name() -> None:
    _, taken = models_json_schema([(schema, "validation") for schema in openapi_bodies.REQUESTS])
    _, given = msgspec.json.schema_components(openapi_bodies.ANSWERS)
    names = Counter([*taken["$defs"], *given])

    assert [name for name, count in names.items() if count > 1] == []
    # Two of one name in the same half would have been given the names of their modules.
    assert [name for name in names if not name.isidentifier() or "__" in name] == []


def test_every_field_of_a_request_is_described() -> None:
    known = openapi_bodies.components()
    for schema in openapi_bodies.REQUESTS:
        fields = known[schema.__name__]["properties"]
        assert [name for name, field in fields.items() if not field.get("description")] == []


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        yield from (found for inner in value.values() for found in references(inner))
    elif isinstance(value, list):
        yield from (found for inner in value for found in references(inner))


def test_the_document_refers_to_nothing_it_does_not_have() -> None:
    known = openapi_bodies.components()
    routes = [
        *[schemas.request_body(schema) for schema in openapi_bodies.REQUESTS],
        *[schemas.response(answer, "An answer.", chunk=answer) for answer in openapi_bodies.ANSWERS],
    ]

    wanted = {reference.removeprefix("#/components/schemas/") for reference in references([known, routes])}
    assert wanted <= set(known)
