from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from ollama import EmbedResponse

from helpers.schema_tables import assert_matches_schema
from penstock.errors import InvalidRequest
from penstock.flow import Request
from penstock.http.api.ollama import embed
from penstock.http.api.ollama.response_bodies import OllamaEmbeddingList
from penstock.http.api.ollama.schemas import OllamaEmbeddingsRequest, OllamaEmbedRequest
from penstock.http.parse.schema import parse

CONTEXT = 32


class Words:
    """Every character is a token, behind one that begins the text."""

    def __init__(self) -> None:
        self.read = 0

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        self.read += len(text)
        return [0, *map(ord, text)]


def body(**fields: Any) -> OllamaEmbedRequest:
    return parse(OllamaEmbedRequest, json.dumps({"model": "m", **fields}).encode())


def asked(**fields: Any) -> list[Request]:
    return embed.embed_requests(body(**fields), request_id="r", context=CONTEXT, hidden_size=4)


def cut(*texts: str) -> tuple[list[Request], int]:
    words = Words()
    return embed.truncate(asked(input=list(texts)), words, CONTEXT), words.read  # type: ignore[arg-type]


def packed(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def test_one_request_for_each_text() -> None:
    made = asked(input=["a", "b"], keep_alive=0, options={"num_ctx": 99})
    assert [(one.id, one.text, one.task) for one in made] == [("r-0", "a", "embed"), ("r-1", "b", "embed")]
    assert [warning.partition(" ")[0] for warning in made[0].warnings] == ["keep_alive:", "options.num_ctx"]


@pytest.mark.parametrize("given", ["", []])
def test_nothing_to_embed_asks_for_the_model(given: Any) -> None:
    assert embed.texts_of(body(input=given)) == []


def test_more_dimensions_than_there_are() -> None:
    assert len(asked(input="a", dimensions=4)) == 1
    with pytest.raises(InvalidRequest, match="vectors have 4") as caught:
        asked(input="a", dimensions=5)
    assert caught.value.param == "dimensions"


def test_the_beginning_of_a_text_that_is_too_long() -> None:
    short, fits, long = "a" * 5, "b" * (CONTEXT - 1), "c" * CONTEXT
    made, _ = cut(short, fits, long)
    assert [one.text for one in made] == [short, fits, None]
    assert made[2].tokens == [0, *[ord("c")] * (CONTEXT - 1)]
    warned = (f"a text that does not fit the context was truncated to its first {CONTEXT} tokens",)
    assert [one.warnings for one in made] == [(), (), warned]


def test_no_more_of_it_is_read_than_needed() -> None:
    _, read = cut("d" * 1_000_000)
    assert read < 16 * CONTEXT


def test_tokens_of_many_characters() -> None:
    class Long(Words):
        def encode(self, text: str, *, add_special: bool = True) -> list[int]:
            self.read += len(text)
            return [1] * (len(text) // 100)

    words, text = Long(), "e" * (100 * CONTEXT + 100)
    (made,) = embed.truncate(asked(input=[text]), words, CONTEXT)  # type: ignore[arg-type]
    assert made.tokens == [1] * CONTEXT
    (whole,) = embed.truncate(asked(input=[text[:-100]]), words, CONTEXT)  # type: ignore[arg-type]
    assert whole.text == text[:-100]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"input": "a" * 6}, False),
        ({"input": ["a", "a" * 7]}, True),
        ({"input": "a" * 99, "truncate": True}, True),
        ({"input": "a" * 99, "truncate": False}, False),
    ],
)
def test_what_may_have_to_be_cut(fields: dict[str, Any], wanted: bool) -> None:
    assert embed.may_need_truncation(body(**fields), CONTEXT) is wanted


def test_the_answer() -> None:
    vectors = [packed(0.6, 0.0, 0.8), packed(1.0, 0.0, 0.0)]
    data = json.loads(embed.encode_embeddings(body(input=["a", "b"]), vectors, prompt_tokens=5, total_duration=7))
    assert_matches_schema(OllamaEmbeddingList, data)
    assert EmbedResponse(**data).prompt_eval_count == 5
    assert data["embeddings"] == [pytest.approx([0.6, 0.0, 0.8]), [1.0, 0.0, 0.0]]
    assert (data["model"], data["total_duration"], data["load_duration"]) == ("m", 7, 0)


def test_fewer_dimensions_are_of_unit_length_again() -> None:
    data = json.loads(
        embed.encode_embeddings(
            body(input="a", dimensions=2), [packed(0.3, 0.4, 0.87)], prompt_tokens=1, total_duration=1
        )
    )
    assert data["embeddings"] == [pytest.approx([0.6, 0.8])]


def test_the_older_route() -> None:
    older = parse(OllamaEmbeddingsRequest, b'{"model": "m", "prompt": "a"}')
    assert embed.texts_of(older) == ["a"]
    assert json.loads(embed.encode_embedding([packed(1.0, 0.0)])) == {"embedding": [1.0, 0.0]}
    assert json.loads(embed.encode_embedding([])) == {"embedding": []}
    assert embed.may_need_truncation(parse(OllamaEmbeddingsRequest, b'{"model": "m", "prompt": "long enough"}'), 8)
