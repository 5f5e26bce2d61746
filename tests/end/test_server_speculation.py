"""A server with speculation: what its metrics, records and answers say of drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.native_paged_model import needs_library
from helpers.server_process import PATIENCE_S, Server

pytestmark = needs_library
PROMPT = {"prompt": "one two", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "logit_bias": {"50": 100}}


@pytest.fixture(scope="module")
def speculating(tiny: Path) -> Iterator[Server]:
    options = ("--speculate", "lookup", "--kv-memory", "20MB", "--ledger")
    with Server(tiny, *options) as server:
        yield server


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        reply = http.post("/v1/completions", json={"model": server.model, **PROMPT, **fields}).raise_for_status()
    body: dict[str, Any] = reply.json()
    return body


def drafted_usage(server: Server) -> int:
    """Output tokens so far that had been drafted."""
    total: int = httpx.get(f"{server.url}/usage", timeout=PATIENCE_S).json()["total"]["drafted_tokens"]
    return total


def test_a_stream_shows_its_drafts(speculating: Server) -> None:
    """Step by step: what was drafted, and what the model drew."""
    body = {
        "model": speculating.model, "messages": [{"role": "user", "content": "one two"}], "stream": True,
        "stream_options": {"include_usage": True}, "include_drafts": True, "include_timings": True,
        **{name: value for name, value in PROMPT.items() if name != "prompt"},
    }  # fmt: skip
    with httpx.Client(base_url=speculating.url, timeout=PATIENCE_S) as http:
        lines = http.post("/v1/chat/completions", json=body).raise_for_status().text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    steps = [step for chunk in chunks for choice in chunk["choices"] for step in choice.get("drafts", ())]

    assert sum(len(step["tokens"]) for step in steps) == chunks[-1]["usage"]["completion_tokens"] == 60
    timings = chunks[-1]["timings"]
    assert sum(len(step["drafted"]) for step in steps) == timings["drafted_tokens"]
    assert sum(step["accepted"] for step in steps) == timings["accepted_tokens"] > 0
    assert all(step["drafted"][: step["accepted"]] == step["tokens"][: step["accepted"]] for step in steps)
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == "".join(token for step in steps for token in step["tokens"])


def test_drafts_are_seen_everywhere(speculating: Server) -> None:
    before, used = speculating.metrics(), drafted_usage(speculating)
    plain = ask(speculating, speculation=False, return_token_ids=True, include_timings=True)
    assert "drafted_tokens" not in plain["timings"]
    name = "penstock_spec_decode_num_draft_tokens_total"
    assert speculating.metrics()[name] == before[name]
    body = ask(speculating, return_token_ids=True, include_timings=True, timings_per_token=True)
    assert body["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]

    timings = body["timings"]
    drafted, accepted = timings["drafted_tokens"], timings["accepted_tokens"]
    assert 0 < accepted <= drafted
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (drafted, accepted)

    metrics = {name: value - before.get(name, 0) for name, value in speculating.metrics().items()}
    assert metrics["penstock_spec_decode_num_draft_tokens_total"] == drafted
    assert metrics["penstock_spec_decode_num_accepted_tokens_total"] == accepted
    first = metrics["penstock_spec_decode_num_draft_tokens_per_pos_total{position=0}"]
    assert first == metrics["penstock_spec_decode_num_drafts_total"]
    assert metrics["penstock_spec_decode_num_accepted_tokens_per_pos_total{position=0}"] <= first

    with httpx.Client(base_url=speculating.url, timeout=PATIENCE_S) as http:
        totals = http.get("/observe/speculation").json()
        assert totals["on"] is True
        assert (sum(totals["drafted_by_position"]), sum(totals["accepted_by_position"])) == (
            totals["drafted"],
            totals["accepted"],
        )
        assert totals["drafted"] == speculating.metrics()["penstock_spec_decode_num_draft_tokens_total"]
        request = http.get("/observe/requests").json()["requests"][0]
        sequence = http.get(f"/observe/requests/{request['number']}").json()["sequences"][0]
        assert (sequence["drafted_tokens"], sequence["accepted_tokens"]) == (drafted, accepted)
        window = {"from": sequence["first_step"], "to": sequence["last_step"]}
        rows = http.get("/observe/steps", params=window).json()["rows"]
        assert (sum(rows["drafted"]), sum(rows["accepted"])) == (drafted, accepted)
    assert drafted_usage(speculating) - used == accepted
