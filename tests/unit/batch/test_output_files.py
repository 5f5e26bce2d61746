from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.batch.output_files import error_line, output_line, usage_of
from penstock.batch.records import TokenUsage


def test_a_result_is_one_line() -> None:
    line = output_line("a", 200, "req-1", b'{\n "text": "x\\ny"\n}')
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert found["response"] == {"status_code": 200, "request_id": "req-1", "body": {"text": "x\ny"}}
    assert (found["custom_id"], found["error"]) == ("a", None)
    assert found["id"].startswith("batch_req_")


def test_a_result_is_one_line_for_clients_that_know_the_separators_of_unicode() -> None:
    line = output_line("a\u2028", 200, "req-1", '{"text":"x\x85y"}'.encode()).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["response"]["body"] == {"text": "x\x85y"}


def test_a_request_without_an_answer_has_an_error() -> None:
    found = json.loads(error_line("a", "batch_expired", "too late"))
    assert (found["response"], found["error"]) == (None, {"code": "batch_expired", "message": "too late"})


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 3,
                "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            TokenUsage(5, 4, 3, 2),
        ),
        (
            {"input_tokens": 5, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 1}},
            TokenUsage(5, 0, 3, 1),
        ),
        ({"prompt_tokens": 5, "total_tokens": 5}, TokenUsage(5)),
        (None, TokenUsage()),
        ({"prompt_tokens": "five"}, TokenUsage()),
    ],
)
def test_usage_is_counted_in_the_names_of_each_api(usage: Any, counted: TokenUsage) -> None:
    assert usage_of(json.dumps({"usage": usage, "more": []}).encode()) == counted


def test_an_error_has_no_usage() -> None:
    assert usage_of(b'{"error": {}}') == usage_of(b"not JSON") == TokenUsage()
