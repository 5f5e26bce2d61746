"""Sessions of coding agents, replayed turn by turn: each request is taken as it is, and finds what came before it in
the prefix cache."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from helpers import agent_sessions
from helpers.agent_sessions import TURNS, claude_code, codex
from helpers.server_process import PATIENCE_S, Server

CACHED = 0.95  # of the prompts behind the first, in tokens


def events(server: Server, path: str, body: dict[str, Any]) -> tuple[httpx.Headers, list[dict[str, Any]]]:
    answer = httpx.post(f"{server.api}{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return answer.headers, [json.loads(text) for text in data]


def claude_code_usage(server: Server, turn: int) -> tuple[int, int]:
    headers, sent = events(server, "/messages", claude_code(server.model, turn))
    assert headers["x-penstock-warnings"].startswith("output_config.effort has no effect")
    usage = sent[0]["message"]["usage"]
    return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]


def codex_usage(server: Server, turn: int) -> tuple[int, int]:
    headers, sent = events(server, "/responses", codex(server.model, turn))
    for kind in ("custom", "image_generation", "namespace", "web_search"):
        assert f"tools of type {kind} are left out" in headers["x-penstock-warnings"]
    assert "client_metadata has no effect" in headers["x-penstock-warnings"]
    assert [tool["name"] for tool in sent[-1]["response"]["tools"]] == ["exec_command"]
    usage = sent[-1]["response"]["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("usage", [claude_code_usage, codex_usage])
def test_a_session_finds_its_past_in_the_cache(server: Server, usage: Callable[[Server, int], tuple[int, int]]) -> None:
    turns = [usage(server, turn) for turn in range(TURNS)]
    assert [prompt for prompt, _ in turns] == sorted(prompt for prompt, _ in turns)
    later = turns[1:]
    assert sum(cached for _, cached in later) >= CACHED * sum(prompt for prompt, _ in later), turns


def test_what_differs_from_turn_to_turn_is_in_the_session() -> None:
    """Else the test above would say nothing."""
    first, second = claude_code("m", 3), claude_code("m", 4)
    assert first["system"][0] != second["system"][0]
    assert first["messages"][-1] != second["messages"][len(first["messages"]) - 1]  # the mark has moved on
    assert len(agent_sessions.RULES) > 3000
