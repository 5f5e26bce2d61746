from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses.response_item_list import ResponseItemList

from helpers.schema_tables import assert_matches_schema
from penstock.errors import InvalidRequest
from penstock.http.api.responses import input_items
from penstock.http.api.responses.response_bodies import InputItems
from penstock.http.api.responses.schemas import ResponseRequest
from penstock.http.parse.schema import parse

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
ITEMS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "So."}], "id": "msg_1"},
    {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    CALL,
    {"type": "function_call_output", "call_id": "c1", "output": "3"},
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "a"}},
]


def items(given: Any, name: str = "item", before: bytes | None = None, answer: bytes | None = None) -> bytes:
    return input_items.input_items(
        parse(ResponseRequest, json.dumps({"input": given}).encode()).input, name, before, answer
    )


def page(given: bytes, after: str | None = None, limit: int = 20, order: str = "asc") -> dict[str, Any]:
    data = input_items.page(given, after=after, limit=limit, order=order)
    ResponseItemList.model_validate_json(data)
    body: dict[str, Any] = json.loads(data)
    assert_matches_schema(InputItems, body)
    return body


def test_a_text_is_an_item() -> None:
    assert page(items("Hi")) == {
        "object": "list",
        "data": [
            {
                "id": "item_0",
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{"type": "input_text", "text": "Hi"}],
            }
        ],
        "first_id": "item_0",
        "last_id": "item_0",
        "has_more": False,
    }


def test_items_are_listed_as_they_came() -> None:
    listed = page(items(ITEMS))["data"]

    assert [item["id"] for item in listed] == ["item_0", "msg_1", "item_2", "item_3", "item_4", "item_5"]
    assert listed[1]["content"] == [{"type": "output_text", "text": "So.", "annotations": []}]
    for given, item in zip(ITEMS[2:], listed[2:], strict=True):
        assert given.items() <= item.items()


def test_what_it_goes_on_from_is_listed_first() -> None:
    answer = b'{"id": "resp_1", "output": [{"id": "msg_2", "type": "message"}]}'
    ids = [item["id"] for item in json.loads(items("And?", "b", items("Hi", "a"), answer))]

    assert ids == ["a_0", "msg_2", "b_0"]


def test_pages() -> None:
    given = items([{"role": "user", "content": str(number)} for number in range(5)])
    seen: list[str] = []
    found: dict[str, Any] = {"has_more": True, "last_id": None}
    while found["has_more"]:
        found = page(given, after=found["last_id"], limit=2)
        assert (found["first_id"], found["last_id"]) == (found["data"][0]["id"], found["data"][-1]["id"])
        seen += [item["id"] for item in found["data"]]

    assert seen == [f"item_{number}" for number in range(5)]
    assert [item["id"] for item in page(given, order="desc", limit=2)["data"]] == ["item_4", "item_3"]
    assert [item["id"] for item in page(given, order="desc", after="item_1")["data"]] == ["item_0"]
    assert json.loads(input_items.page(given, after="item_4", limit=2, order="asc")) == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip
    with pytest.raises(InvalidRequest) as caught:
        page(given, after="item_9")
    assert caught.value.param == "after"
