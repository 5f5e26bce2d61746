from __future__ import annotations

import base64
import json
import struct
from typing import Any

import httpx
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from helpers.openai_samples import EMBED, raw
from helpers.schema_tables import assert_matches_schema
from penstock.http.api.openai import embeddings
from penstock.http.parse.schema import parse

VECTOR = [0.5, -1.25, 3.0]
PACKED = struct.pack("<3f", *VECTOR)


def answered(vectors: list[Any], **fields: Any) -> bytes:
    body = parse(embeddings.REQUEST, raw({**EMBED, **fields}))
    text = embeddings.encode_embeddings(body, vectors, model="tiny", prompt_tokens=7)
    assert_matches_schema(embeddings.RESPONSE, json.loads(text))
    return text


@pytest.mark.parametrize(
    ("given", "wanted"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])]
)
def test_inputs(given: Any, wanted: list[Any]) -> None:
    requests = embeddings.to_requests(parse(embeddings.REQUEST, raw({**EMBED, "input": given})), request_id="r")
    assert [request.tokens if request.text is None else request.text for request in requests] == wanted
    assert [request.id for request in requests] == [f"r-{index}" for index in range(len(wanted))]


@pytest.mark.parametrize(("fields", "wanted"), [({}, "mean"), ({"pooling": "last"}, "last")])
def test_pooling(fields: dict[str, str], wanted: str) -> None:
    (request,) = embeddings.to_requests(parse(embeddings.REQUEST, raw({**EMBED, **fields})), request_id="r")
    assert (request.task, request.pooling) == ("embed", wanted)


@pytest.mark.parametrize("vector", [VECTOR, PACKED])
def test_floats(vector: Any) -> None:
    text = answered([vector, vector])

    CreateEmbeddingResponse.model_validate_json(text, strict=True)
    assert json.loads(text) == {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": VECTOR} for index in range(2)],
        "model": "tiny",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


@pytest.mark.parametrize("vector", [VECTOR, PACKED])
def test_base64(vector: Any) -> None:
    (one,) = json.loads(answered([vector], encoding_format="base64"))["data"]

    assert base64.b64decode(one["embedding"]) == PACKED


@pytest.mark.parametrize("fields", [{}, {"encoding_format": "float"}])
def test_the_sdk_reads_them(fields: dict[str, Any]) -> None:
    """It asks for base64 by itself."""

    def serve(request: httpx.Request) -> httpx.Response:
        body = parse(embeddings.REQUEST, request.content)
        text = embeddings.encode_embeddings(body, [PACKED], model=body.model, prompt_tokens=1)
        return httpx.Response(200, content=text, headers={"content-type": "application/json"})

    http = httpx.Client(transport=httpx.MockTransport(serve))
    with openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=http) as client:
        answer = client.embeddings.create(model="tiny", input=["a"], **fields)

    assert answer.data[0].embedding == VECTOR
