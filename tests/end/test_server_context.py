"""Context assembly and reranking over HTTP, in all APIs that have them, on a model that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from helpers.server_process import PATIENCE_S, Server

DOCUMENTS = [{"id": "a", "text": "Pumps move water."}, {"id": "b", "text": "Valves close."}, "Rivers run."]
TALK = [
    {"role": role, "content": f"{role} {turn} " + "and so on, " * 10}
    for turn in range(8)
    for role in ("user", "assistant")
]
ASK = [*TALK, {"role": "user", "content": "What do valves do?"}]
CONTEXT = {"budget": {"total": 900, "output": 20}, "trace": True}


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json={"model": server.model, **body}, timeout=PATIENCE_S)


def check_trace(trace: dict[str, Any], prompt_tokens: int) -> None:
    assert trace["prompt_tokens"] == prompt_tokens == sum(part["tokens"] for part in trace["parts"])
    assert prompt_tokens <= 880
    actions = {part["kind"]: part["action"] for part in reversed(trace["parts"])}
    assert (actions["turn"], actions["user"]) == ("dropped", "kept")


def test_the_trace_of_a_chat_completion(server: Server, client: openai.OpenAI) -> None:
    extra = {"context": CONTEXT, "documents": DOCUMENTS}
    options: dict[str, Any] = {"model": server.model, "messages": ASK, "max_tokens": 5, "extra_body": extra}
    whole = client.chat.completions.create(**options).model_dump()
    check_trace(whole["context"], whole["usage"]["prompt_tokens"])
    assert [part["id"] for part in whole["context"]["parts"] if part["kind"] == "document"] == ["b", "a", "3"]
    chunks = [one.model_dump() for one in client.chat.completions.create(stream=True, **options)]
    (trace,) = [chunk["context"] for chunk in chunks if "context" in chunk]
    assert trace == {**whole["context"], "calls": trace["calls"]}
    shown = httpx.get(f"{server.url}/observe/requests/{whole['id']}", timeout=PATIENCE_S).json()
    assert shown["context"]["parts"] == whole["context"]["parts"]


def test_the_trace_of_a_message(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none") as client:
        extra = {"context": CONTEXT, "documents": DOCUMENTS}
        options: dict[str, Any] = {"model": server.model, "messages": ASK, "max_tokens": 5, "extra_body": extra}
        whole = client.messages.create(**options).model_dump()
        used = whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"]
        check_trace(whole["context"], used)
        with client.messages.create(stream=True, **options) as stream:
            events = [event.model_dump() for event in stream]
        (trace,) = [event["context"] for event in events if "context" in event]
        assert trace["parts"] == whole["context"]["parts"]


def test_the_trace_of_a_response_and_its_truncation(server: Server, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": server.model, "input": ASK, "max_output_tokens": 20}
    extra = {"context": CONTEXT, "documents": DOCUMENTS}
    whole = client.responses.create(**options, extra_body=extra).model_dump()
    check_trace(whole["context"], whole["usage"]["input_tokens"])
    events = [event.model_dump() for event in client.responses.create(stream=True, **options, extra_body=extra)]
    assert events[-1]["response"]["context"]["parts"] == whole["context"]["parts"]
    budget = {"context": {"budget": {"total": 900}}}
    made = client.responses.create(**options, truncation="auto", extra_body=budget).model_dump()
    assert made["usage"]["input_tokens"] <= 880
    assert made["truncation"] == "auto"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**options, truncation="disabled", extra_body=budget)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_reranked(server: Server, path: str) -> None:
    texts = ["Pumps move water.", {"text": "Valves close.", "title": "Valves"}, "Rivers run."]
    made = post(server, path, {"query": "What do valves do?", "documents": texts}).json()
    assert made["id"].startswith("rerank-")
    assert sorted(result["index"] for result in made["results"]) == [0, 1, 2]
    scores = [result["relevance_score"] for result in made["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert all("document" not in result for result in made["results"])
    usage = made["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] / 3  # they begin alike
    best = {"query": "What do valves do?", "documents": texts, "top_n": 1, "return_documents": True}
    (first,) = post(server, path, best).json()["results"]
    assert (first["index"], first["relevance_score"]) == (made["results"][0]["index"], scores[0])
    assert first["document"]["text"]


def test_the_example_of_reranking_is_answered(server: Server) -> None:
    """The server of `test_server_schema` has no room for it."""
    document = httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE_S).json()
    (example,) = document["components"]["schemas"]["RerankRequest"]["examples"]
    made = post(server, "/v1/rerank", example)
    assert made.status_code == 200, made.text
    assert len(made.json()["results"]) == example.get("top_n", len(example["documents"]))


@pytest.mark.parametrize("rank", ["embedding", "reranker"])
def test_a_served_model_ranks(server: Server, rank: str) -> None:
    context = {"rank": rank, "rank_model": server.model, "trace": True}
    body = {"messages": ASK[-1:], "documents": DOCUMENTS, "context": context, "max_tokens": 2}
    trace = post(server, "/v1/chat/completions", body).json()["context"]
    (call,) = trace["calls"]
    assert (trace["rank"], call["kind"], call["model"]) == (rank, rank, server.model)
    scores = [part["score"] for part in trace["parts"] if part["kind"] == "document"]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3


def test_a_served_model_summarizes(server: Server) -> None:
    context = {**CONTEXT, "history": "summarize", "summary_tokens": 20}
    made = post(server, "/v1/chat/completions", {"messages": ASK, "context": context, "max_tokens": 2}).json()
    (call,) = made["context"]["calls"]
    assert call["kind"] == "summary"
    assert 0 < call["output_tokens"] <= 20
    check_trace({**made["context"], "parts": _dropped(made["context"]["parts"])}, made["usage"]["prompt_tokens"])


def _dropped(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarized turns as dropped ones."""
    return [{**part, "action": "dropped" if part["action"] == "summarized" else part["action"]} for part in parts]


CHAT = "/v1/chat/completions"
WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    (CHAT, {"context": []}, 400, "context"),
    (CHAT, {"context": {"budgets": {}}}, 400, "context.budgets"),
    (CHAT, {"context": {"budget": {"total": 0}}}, 400, "context.budget.total"),
    (CHAT, {"context": {"budget": {"total": 1.5}}}, 400, "context.budget.total"),
    (CHAT, {"context": {"budget": {"total": 100, "output": 100}}}, 400, "context.budget.output"),
    (CHAT, {"context": {"budget": {"user": 1}}}, 400, "context.budget.user"),
    (CHAT, {"context": {"budget": {"system": True}}}, 400, "context.budget.system"),
    (CHAT, {"context": {"history": "forget"}}, 400, "context.history"),
    (CHAT, {"context": {"history": "keep_first"}}, 400, "context.keep_first"),
    (CHAT, {"context": {"keep_first": 1}}, 400, "context.keep_first"),
    (CHAT, {"context": {"history": "keep_first", "keep_first": -1}}, 400, "context.keep_first"),
    (CHAT, {"context": {"summary_tokens": 10}}, 400, "context.summary_tokens"),
    (CHAT, {"context": {"history": "summarize", "summary_model": "none"}}, 404, "context.summary_model"),
    (CHAT, {"context": {"rank": "magic"}}, 400, "context.rank"),
    (CHAT, {"context": {"rank": "reranker", "rank_model": "none"}}, 404, "context.rank_model"),
    (CHAT, {"context": {"placement": "template"}}, 400, "context.placement"),
    (CHAT, {"context": {"placement": "end"}}, 400, "context.placement"),
    (CHAT, {"context": {"show_schema": True}}, 400, "context.show_schema"),
    (CHAT, {"context": {"trace": "yes"}}, 400, "context.trace"),
    (CHAT, {"context": {}, "truncate_prompt_tokens": 5}, 400, "truncate_prompt_tokens"),
    (CHAT, {"documents": {}}, 400, "documents"),
    (CHAT, {"documents": [1]}, 400, "documents[0]"),
    (CHAT, {"documents": [""]}, 400, "documents[0]"),
    (CHAT, {"documents": [{"text": ""}]}, 400, "documents[0].text"),
    (CHAT, {"documents": [{"text": "a", "id": ""}]}, 400, "documents[0].id"),
    (CHAT, {"documents": [{"text": "a", "id": "x"}, {"text": "b", "id": "x"}]}, 400, "documents"),
    (CHAT, {"documents": ["a", {"text": "b", "id": "1"}]}, 400, "documents"),
    (CHAT, {"documents": [{"text": "a", "score": "high"}]}, 400, "documents[0].score"),
    (CHAT, {"documents": [{"text": "a", "url": "x"}]}, 400, "documents[0].url"),
    (CHAT, {"documents": ["a"] * 10_000}, 400, "documents"),
    (CHAT, {"documents": ["a", "b"], "context": {"rank": "score"}}, 400, "documents[0].score"),
    (CHAT, {"documents": [{"text": "word " * 300, "pinned": True}], "context": CONTEXT}, 400, "messages"),
    ("/v1/rerank", {"documents": ["a"]}, 400, "query"),
    ("/v1/rerank", {"query": "", "documents": ["a"]}, 400, "query"),
    ("/v1/rerank", {"query": "a"}, 400, "documents"),
    ("/v1/rerank", {"query": "a", "documents": []}, 400, "documents"),
    ("/v1/rerank", {"query": "a", "documents": [""]}, 400, "documents[0]"),
    ("/v1/rerank", {"query": "a", "documents": ["a"] * 1001}, 400, "documents"),
    ("/v1/rerank", {"query": "a", "documents": [{"image": "a"}]}, 400, "documents[0].image"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, 400, "top_n"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 0}, 400, "max_tokens_per_doc"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "rank_fields": ["a"]}, 400, "rank_fields"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "model": "none"}, 404, "model"),
    ("/v1/rerank", {"query": "word " * 100_000, "documents": ["a"]}, 400, "query"),
    ("/plan/budget", {"user": "a", "assembly": {"rank": "reranker"}}, 400, "assembly.rank"),
    ("/plan/budget", {"user": "a", "assembly": {"history": "keep_first"}}, 400, "assembly.keep_first"),
]


@pytest.mark.parametrize(("path", "fields", "status", "param"), WRONG)
def test_what_is_wrong_is_named(server: Server, path: str, fields: dict[str, Any], status: int, param: str) -> None:
    messages = {"messages": ASK[-1:], "max_tokens": 2} if path == CHAT else {}
    response = post(server, path, {**messages, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param), response.text


def test_scores_are_numbers(server: Server) -> None:
    body = json.dumps({"model": server.model, "messages": ASK[-1:], "documents": [{"text": "a", "score": 0.5}]})
    headers = {"content-type": "application/json"}
    for number in ("NaN", "Infinity", "1e999"):
        content = body.replace("0.5", number)
        response = httpx.post(server.url + CHAT, content=content, headers=headers, timeout=PATIENCE_S)
        assert response.status_code == 400, number


def test_the_planner_shows_what_assembly_keeps(server: Server) -> None:
    body = {"history": TALK, "user": "What do valves do?", "documents": DOCUMENTS, "reserved_output": 20}
    assembly = {"budget": {"total": 900}, "rank": "bm25"}
    made = post(server, "/plan/budget", {**body, "assembly": assembly}).json()["assembled"]
    chat = {"messages": ASK, "documents": DOCUMENTS, "context": {**assembly, "trace": True}, "max_tokens": 20}
    real = post(server, CHAT, chat).json()["context"]
    assert made["parts"] == real["parts"]
    assert post(server, "/plan/budget", body).json()["assembled"] is None


def test_defaults_of_a_model_hold_in_requests_and_in_the_planner(tiny: Path, tmp_path: Path) -> None:
    """And a total of a request goes before those limits of the defaults that have no room in it."""
    config = tmp_path / "penstock.toml"
    config.write_text(
        f'[[models]]\nname = "{tiny.name}"\nmodel = "{tiny}"\n[models.context_defaults]\nhistory = "keep_first"\n'
        "keep_first = 1\nbudget = { total = 1200, documents = 1000, output = 20 }\n"
    )
    with Server(f"--config={config}") as server:
        server.model = tiny.name
        for context in ({}, {"budget": {"total": 900}}):
            body = {"history": TALK, "user": "What do valves do?", "documents": DOCUMENTS, "reserved_output": 20}
            made = post(server, "/plan/budget", {**body, "assembly": context}).json()["assembled"]
            chat = {"messages": ASK, "documents": DOCUMENTS, "context": {**context, "trace": True}, "max_tokens": 20}
            real = post(server, CHAT, chat)
            assert real.status_code == 200, real.text
            assert made["parts"] == real.json()["context"]["parts"]
            turns = [part["action"] for part in made["parts"] if part["kind"] == "turn"]
            assert turns[:2] == ["kept", "dropped"]
