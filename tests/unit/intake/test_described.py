"""The schemas of all APIs stand side by side in one document."""

from __future__ import annotations

from collections import Counter

import msgspec
from pydantic.json_schema import models_json_schema

from penstock.intake.anthropic import messages
from penstock.intake.openai import openapi
from penstock.intake.openai.responses import writer as responses

REQUESTS = openapi.REQUESTS + responses.REQUESTS + messages.REQUESTS
ANSWERS = openapi.ANSWERS + responses.ANSWERS + messages.ANSWERS


def test_no_two_schemas_have_the_same_name() -> None:
    _, taken = models_json_schema([(schema, "validation") for schema in REQUESTS])
    _, given = msgspec.json.schema_components(ANSWERS)
    names = Counter([*taken["$defs"], *given])

    assert [name for name, count in names.items() if count > 1] == []
    # Two of one name in the same half would have been given the names of their modules.
    assert [name for name in names if not name.isidentifier() or "__" in name] == []


def test_every_field_of_a_request_is_described() -> None:
    known = openapi.components(REQUESTS, ANSWERS)
    for schema in REQUESTS:
        fields = known[schema.__name__]["properties"]
        assert [name for name, field in fields.items() if not field.get("description")] == []
