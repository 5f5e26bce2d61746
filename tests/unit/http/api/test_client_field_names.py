from __future__ import annotations

import json

import pytest

from helpers.openai_samples import CHAT, TEXT
from penstock.errors import InvalidRequest
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.openai import chat, completions
from penstock.http.api.openai.schemas import GenerationFields
from penstock.http.parse.schema import parse


@pytest.mark.parametrize(
    "body", [parse(chat.REQUEST, json.dumps(CHAT).encode()), parse(completions.REQUEST, json.dumps(TEXT).encode())]
)
@pytest.mark.parametrize(
    ("internal", "wanted"),
    [
        ("stop_tokens", "stop_token_ids"),
        ("timeout_s", "timeout"),
        ("constraint.json_schema", "response_format.json_schema.schema"),
        ("constraint.regex", "response_format.regex"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_openai_clients_read_their_own_names(body: GenerationFields, internal: str, wanted: str) -> None:
    with pytest.raises(InvalidRequest) as caught, client_field_names(body.client_names()):
        raise InvalidRequest(f"{internal}: token id 9 is unknown", param=internal)

    assert caught.value.message == f"{wanted}: token id 9 is unknown"
    assert caught.value.param == wanted


def test_longer_names_are_left_alone() -> None:
    with pytest.raises(InvalidRequest) as caught, client_field_names({"stop": "options.stop"}):
        raise InvalidRequest("stop_tokens is wrong", param="stop_tokens")
    assert caught.value.param == "stop_tokens"
