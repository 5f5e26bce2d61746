"""Streams of chat completions that a browser test sends in the server's place."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from playwright.sync_api import Page, Route

from helpers.server_process import Server


def stream(*choices: dict[str, Any], finish: str = "stop", **last: Any) -> str:
    """Events of an answer: each choice in a chunk of its own, then the end. `last` are fields of the last chunk."""

    def chunk(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {
            "id": "chatcmpl-x",
            "choices": [{"index": 0, "logprobs": None, "finish_reason": None, **choice}],
            **fields,
        }

    chunks = [chunk({"delta": {}, **choice}) for choice in choices]
    chunks.append(chunk({"delta": {}, "finish_reason": finish}, **last))
    return "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"


def text_stream(text: str, pieces: int = 50) -> str:
    size = max(1, len(text) // pieces)
    return stream(*({"delta": {"content": text[at : at + size]}} for at in range(0, len(text), size)))


def answer_with(page: Page, answers: Sequence[str]) -> list[dict[str, Any]]:
    """Chat completions get these answers, in turn. Returns the list of bodies, which grows."""
    left, sent = list(answers), []

    def fulfil(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body=left.pop(0))

    page.route("**/v1/chat/completions", fulfil)
    return sent


def change_facts(page: Page, server: Server, change: Callable[[dict[str, Any]], None]) -> None:
    """The page sees the server's facts with this change."""

    def fulfil(route: Route) -> None:
        response = route.fetch()
        facts = response.json()
        change(facts)
        route.fulfill(response=response, json=facts)

    page.route("**/observe/facts", fulfil)
