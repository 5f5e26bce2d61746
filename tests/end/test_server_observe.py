"""The glass box, through a real server: what it shows is what happened."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def watched(tiny: Path) -> Iterator[Server]:
    """Few slots, so that there is somebody who waits; keeps texts."""
    with Server(tiny, "--max-sequences", 2, "--kv-memory", "100MB", "--keep-texts") as server:
        yield server


@pytest.fixture
def http(watched: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=watched.url, timeout=PATIENCE_S) as http:
        yield http
    until(watched.idle, "everything over")


def ask(http: httpx.Client, prompt: str | list[int], *, tokens: int = 8, stream: bool = False, **more: Any) -> str:
    """A completion; gives its x-request-id."""
    model = http.get("/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream, **more}
    answer = http.post("/v1/completions", json=body)
    answer.raise_for_status()
    return str(answer.headers["x-request-id"])


def shown(http: httpx.Client, path: str, **params: Any) -> dict[str, Any]:
    answer = http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ended(http: httpx.Client, name: object) -> dict[str, Any]:
    """All there is to know of a request, once the server is through with it: its client may be so a moment before."""

    def found() -> dict[str, Any] | None:
        told = shown(http, f"/observe/requests/{name}")
        return told if told["state"] == "done" else None

    return until(found, f"the end of request {name}")  # type: ignore[return-value]


def test_the_stages_of_a_request_add_up_to_what_its_client_measures(http: httpx.Client) -> None:
    """Within 5%: what is missing is the client's own share, which is the same for short answers and long ones, so this
    one is long. A busy machine may make it large all the same: then another request is looked at."""
    model = http.get("/v1/models").json()["data"][0]["id"]
    deadline = time.monotonic() + PATIENCE_S
    for stream in (False, True):
        body = {"model": model, "prompt": "a stormy night", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
        shares: list[float] = []
        while not shares or abs(shares[-1] - 1) >= 0.05:
            assert time.monotonic() < deadline, shares
            begin = time.monotonic()
            answer = http.post("/v1/completions", json=body)
            measured_us = (time.monotonic() - begin) * 1e6
            told = ended(http, answer.headers["x-request-id"])
            added_us = sum(stage["us"] for stage in told["stages"])
            assert added_us == pytest.approx(told["e2e_us"], rel=0.001)
            shares.append(added_us / measured_us)
        assert [stage["name"] for stage in told["stages"]][:2] == ["intake", "validate"]
        assert {"tokenize", "prefill", "decode", "write"} <= {stage["name"] for stage in told["stages"]}
        assert told["totals"]["decode_steps"] == 1999
        assert told["output_tokens"] == 2000
        assert told["finish"] == "length"
        names = [event["name"] for event in told["events"]]
        assert names[0] == "accepted"
        assert names[-1] == "finished"
        order = ("accepted", "tokenized", "queued", "received", "admitted", "first_token", "stopped", "finished")
        assert [name for name in names if name in order] == list(order)


ENDLESS = {"prompt": "on and on", "max_tokens": ENDLESS_TOKENS, "ignore_eos": True, "stream": True}


def test_who_waits_is_shown_and_what_for(http: httpx.Client, watched: Server) -> None:
    model = http.get("/v1/models").json()["data"][0]["id"]

    def queued() -> bool:
        found = shown(http, "/observe/requests", state="open")["requests"]
        return [one["state"] for one in found] == ["queued", "running"]

    with ThreadPoolExecutor() as threads:
        with http.stream("POST", "/v1/completions", json={"model": model, "n": 2, **ENDLESS}) as stream:
            lines = stream.iter_lines()
            next(lines)  # both slots are taken
            later = threads.submit(ask, http, "I can wait", tokens=20)
            until(queued, "somebody who waits")
            until(lambda: ticks(http, lambda tick: True)["stats"]["waiting_by_reason"]["slot"] == 1, "and what for")
            since = time.monotonic()

            def blocked() -> set[str | None]:
                return set(shown(http, "/observe/steps", last=5)["steps"]["blocked"])

            until(lambda: blocked() == {"slot"}, "five steps of it")
            assert set(shown(http, "/observe/steps", last=5)["steps"]["rows"]) == {2}
            seen_us = (time.monotonic() - since) * 1e6
        name = later.result(PATIENCE_S)
    told = ended(http, name)
    assert told["waited_for"] == "slot"
    (sequence,) = told["sequences"]
    waits = sequence["wait"]["by_us"]
    assert waits["slot"] >= seen_us
    in_engine_us = sequence["admitted_at"] - sequence["received_at"]  # its way there is no wait for a slot
    assert waits["slot"] > 0.9 * in_engine_us - 5000
    assert sum(waits.values()) == pytest.approx(told["queue_us"], rel=0.02, abs=3000)
    window = shown(http, "/observe/steps", **{"from": sequence["first_step"], "to": sequence["last_step"]})
    rows = [
        (count, kind)
        for number, count, kind in zip(*(window["rows"][name] for name in ("seq", "tokens", "kind")), strict=True)
        if number == sequence["seq"]
    ]
    computed = sequence["prompt_tokens"] - sequence["cached_tokens"]
    assert rows == [(computed, 0), *[(1, 1)] * 19]
    assert {mark["kind"] for mark in window["marks"] if mark["seq"] == sequence["seq"]} == {"admitted", "finished"}


def test_recorded_requests_are_replayed(http: httpx.Client) -> None:
    names = [ask(http, f"number {place}", tokens=5 + 20 * (place % 2)) for place in range(6)]
    numbers = [ended(http, name)["seqs"][0] for name in names]
    replayed = shown(http, "/observe/replay", batch=2, limit=6)
    assert replayed["computed"] is True
    assert [one["seq"] for one in replayed["requests"]] == numbers
    assert [one["output_tokens"] for one in replayed["requests"]] == [5, 25] * 3
    assert replayed["continuous"]["makespan_us"] <= replayed["static"]["makespan_us"] * 1.01


def counted(group: dict[str, Any]) -> dict[str, int]:
    states = ("free", "held", "shared", "cached", "resting")
    return {name: sum(run[0] for run in group["runs"] if run[1] == index) for index, name in enumerate(states)}


def test_the_page_map_agrees_with_the_engines_counters(http: httpx.Client, watched: Server) -> None:
    ask(http, [5] * 100)
    model = http.get("/v1/models").json()["data"][0]["id"]
    body = {"model": model, **ENDLESS, "prompt": [7] * 70, "n": 2}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()  # held on to: a stream whose lines nobody has is closed
        begun: set[int] = set()
        while begun != {0, 1}:  # the second choice waits for the blocks of the first
            if line := next(lines):
                begun |= {choice["index"] for choice in json.loads(line.removeprefix("data: "))["choices"]}
        seen = shown(http, "/observe/cache")
        (group,) = seen["groups"]
        found = counted(group)
        assert found["held"] + found["shared"] == group["held"] > 0
        assert (found["free"], found["cached"]) == (group["free"], group["cached"])
        assert sum(found.values()) == group["total"]
        assert group["shared"] == found["shared"] == 4, "what both choices begin with, in whole blocks"
        assert len(seen["sequences"]) == 2
        owned = sum(one["blocks"] for one in seen["sequences"].values())
        assert owned == group["held"] + group["shared"]
    until(watched.idle, "the end of a request nobody reads")
    (group,) = shown(http, "/observe/cache")["groups"]
    metrics = watched.metrics()
    for state in ("free", "held", "cached", "total"):
        assert group[state] == metrics[f"penstock_kv_blocks{{group=0,state={state}}}"]
    assert counted(group)["held"] == 0
    tree = shown(http, "/observe/cache/tree", limit=2000)
    assert all(isinstance(node["text"], str) for node in tree["nodes"])  # keeps texts
    assert sum(node["blocks"] for node in tree["nodes"] if node["state"] == "cached") == group["cached"]


def explain(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/observe/cache/explain", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_miss_is_explained_to_the_token_and_to_its_own_tenant_only(http: httpx.Client) -> None:
    secret = [30 + place % 40 for place in range(90)]
    ask(http, secret, cache_salt="alice")
    for at in (1, 17, 50, 79):
        mine = [*secret[:at], 3, *secret[at + 1 :], 3]
        told = explain(http, tokens=mine, cache_salt="alice")
        assert (told["reason"], told["diverged_at"], told["cached_tokens"]) == ("diverged", at, at // 16 * 16)
        for salt in ("bob", ""):
            other = explain(http, tokens=mine, cache_salt=salt)
            assert (other["reason"], other["matched_tokens"], other["text"]) == ("nothing_alike", 0, None)
    name = ask(http, [*secret[:50], 3, *secret[51:]], cache_salt="alice")
    told = ended(http, name)["sequences"][0]["cache"]
    assert (told["diverged_at"], told["cached_tokens"]) == (50, 48)
    own = http.post("/detokenize", json={"tokens": [3]}).json()["prompt"]
    assert told["text"]["at"] == own, "the own token, not the one that is cached"
    assert explain(http, tokens=secret, cache_salt="alice")["reason"] == "full"


def test_the_lab_shows_the_models_own_numbers_and_the_samplers(http: httpx.Client) -> None:
    model = http.get("/v1/models").json()["data"][0]["id"]
    prompt = [9, 8, 7, 6, 5]
    params = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 11}
    told = http.post("/observe/lab", json={"tokens": prompt, "params": params, "top": 20}).json()
    body = {
        "model": model, "prompt": prompt, "max_tokens": 2, "logprobs": 5, "ignore_eos": True,
        "return_token_ids": True, **params,
    }  # fmt: skip
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    first, second = choice["token_ids"]
    assert told["drawn"]["id"] == first, "what a request with this seed draws"
    stages = {stage["name"]: stage for stage in told["stages"]}
    chosen = [token["id"] for token in told["tokens"]].index(first)
    expected = choice["logprobs"]["token_logprobs"][0]
    assert math.log(stages["model"]["probs"][chosen]) == pytest.approx(expected, abs=1e-4)
    assert stages["top_k"]["kept"] == 20
    assert stages["top_p"]["kept"] <= 20
    assert not stages["min_p"]["on"]
    again = http.post("/observe/lab", json={"tokens": prompt, "forced": [first], "params": params}).json()
    assert again["drawn"]["id"] == second, "the branch goes on as the request does"
    assert again["prompt_tokens"] == 5
    other = next(token["id"] for token in told["tokens"] if token["id"] != first)
    elsewhere = http.post("/observe/lab", json={"tokens": prompt, "forced": [other], "params": params}).json()
    assert elsewhere["tokens"][0] != again["tokens"][0]


def test_the_lab_shows_what_a_form_rules_out(http: httpx.Client) -> None:
    model = http.get("/v1/models").json()["data"][0]["id"]
    asked = {"response_format": {"type": "choice", "choice": ["xy", "xz"]}}
    params = {"temperature": 2, "seed": 11}
    lab = {"tokens": [9, 8, 7, 6, 5], "params": params, **asked}
    body = {"model": model, "prompt": [9, 8, 7, 6, 5], "max_tokens": 5, "return_token_ids": True, **params, **asked}
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    first, second = choice["token_ids"]

    def told(*forced: int) -> dict[str, Any]:
        answer = http.post("/observe/lab", json={**lab, "forced": forced})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    for forced, drawn, kept in (((), first, 1), ((first,), second, 2)):
        now = told(*forced)
        stages = {stage["name"]: stage for stage in now["stages"]}
        assert list(stages)[3:6] == ["masks", "constraint", "temperature"]
        assert (stages["constraint"]["on"], stages["constraint"]["kept"]) == (True, kept)
        assert now["drawn"]["id"] == drawn, "what a request with this seed draws"
    assert [(now["drawn"], now["finish"]) for now in (told(first, second), told(5))] == [
        (None, "complete"), (None, "dead_end"),
    ]  # fmt: skip
    assert not any(stage["name"] == "constraint" and stage["on"] for stage in told(5)["stages"])
    free = http.post("/observe/lab", json={"prompt": "a"}).json()
    assert [stage["on"] for stage in free["stages"] if stage["name"] == "constraint"] == [False]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/observe/lab", {}, "prompt"),
        ("/observe/lab", {"prompt": "a", "response_format": {"type": "regex", "regex": "("}}, "response_format.regex"),
        ("/observe/lab", {"prompt": "a", "tokens": [1]}, "prompt"),
        ("/observe/lab", {"tokens": [10**6]}, "tokens"),
        ("/observe/lab", {"prompt": "a", "params": {"top_q": 1}}, "params.top_q"),
        ("/observe/lab", {"prompt": "a", "params": {"temperature": -1}}, "params.temperature"),
        ("/observe/lab", {"prompt": "a", "top": 1000}, "top"),
        ("/observe/cache/explain", {"prompt": ""}, "prompt"),
        ("/observe/requests?limit=0", None, "limit"),
        ("/observe/requests?state=gone", None, "state"),
        ("/observe/steps?colums=3", None, "colums"),
        ("/observe/steps?from=9&to=8", None, "from"),
        ("/observe/steps?from=1&last=5", None, "last"),
        ("/observe/steps?rows=2", None, "rows"),
        ("/observe/requests?limit=", None, "limit"),
        ("/observe/facts?all=1", None, "all"),
        ("/slo?window=1", None, "window"),
        ("/observe/history?seconds=nan", None, "seconds"),
        ("/observe/live?interval_ms=5", None, "interval_ms"),
    ],
)
def test_what_is_asked_wrongly_is_named(http: httpx.Client, path: str, body: Any, param: str) -> None:
    answer = http.get(path) if body is None else http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def ticks(http: httpx.Client, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first tick of a new feed that is as wanted."""
    with http.stream("GET", "/observe/live", params={"interval_ms": 100, "steps": 1}) as feed:
        assert feed.headers["content-type"].startswith("text/event-stream")
        kind = None
        for line in feed.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind == "tick" and wanted(tick := json.loads(line[6:])):
                return dict(tick)
    raise AssertionError("the feed ended")


def test_the_feed_is_live(http: httpx.Client, watched: Server) -> None:
    with ThreadPoolExecutor() as threads:
        busy = threads.submit(ticks, http, lambda tick: bool(tick["steps"]["rows"]["seq"]) and tick["requests"])
        name = ask(http, "live", tokens=300)
        tick = busy.result(PATIENCE_S)
    assert tick["requests"][-1]["request_id"] == name
    assert tick["stats"]["steps"] >= tick["steps"]["to"]
    assert tick["stats"]["kv"][0]["total"] > 0
    quiet = ticks(http, lambda tick: tick["stats"]["open"] == 0 and tick["stats"]["kv"][0]["held"] == 0)
    assert quiet["stats"]["running"] == quiet["stats"]["waiting"] == 0


def test_every_request_ends_once_whatever_becomes_of_it(watched: Server, http: httpx.Client) -> None:
    """Answered, refused, left by its client, and with an engine that dies under it."""
    model = http.get("/v1/models").json()["data"][0]["id"]
    endless = {"model": model, **ENDLESS}
    before = shown(http, "/observe/requests", limit=1)
    last = before["requests"][0]["number"] if before["requests"] else 0
    ask(http, "fine")
    assert http.post("/v1/completions", json={"model": model, "prompt": 5}).status_code == 400
    with http.stream("POST", "/v1/completions", json=endless) as stream:
        next(stream.iter_lines())
    until(watched.idle, "the end of a request nobody reads")
    with http.stream("POST", "/v1/completions", json=endless) as stream:
        lines = stream.iter_lines()
        next(lines)
        watched.kill_engine()
        for _ in lines:
            pass
    until(lambda: watched.status("/ready") == 200, "another engine")
    ask(http, "fine again")

    def all_ended() -> list[dict[str, Any]]:
        found = shown(http, "/observe/requests", limit=100)["requests"]
        mine = [one for one in found if one["number"] > last]
        return mine if all(one["state"] == "done" for one in mine) else []

    mine = until(all_ended, "the end of all")
    assert [one["finish"] for one in reversed(mine)] == ["length", "rejected", "cancelled", "error", "length"]
    codes = [one["error"] and one["error"]["code"] for one in reversed(mine)]
    assert codes == [None, "invalid_request", None, "engine_died", None]
    steps = shown(http, "/observe/steps", last=50)
    assert steps["steps"]["number"] == sorted(steps["steps"]["number"])
    for one in mine:
        told = ended(http, one["number"])
        ends = [event for event in told["events"] if event["name"] in ("finished", "rejected")]
        assert len(ends) == 1
        assert sum(stage["us"] for stage in told["stages"]) == pytest.approx(told["e2e_us"], rel=0.01, abs=50)


def test_requests_by_time_show_how_they_begin(http: httpx.Client) -> None:
    name = ask(http, "  a beginning" + 400 * "!", tokens=2)
    one = ended(http, name)
    assert one["opening"] == ("a beginning" + 400 * "!")[:160]
    at = shown(http, "/observe/requests", since=one["t"], until=one["t"])["requests"]
    assert one["number"] in [other["number"] for other in at]
    later = shown(http, "/observe/requests", since=one["end"] + 1)["requests"]
    earlier = shown(http, "/observe/requests", until=one["t"] - 1)["requests"]
    assert one["number"] not in [other["number"] for other in (*later, *earlier)]


def test_facts_history_objectives_and_metrics(http: httpx.Client, watched: Server) -> None:
    ask(http, "one", tokens=30)
    facts = shown(http, "/observe/facts")
    assert facts["model"]["num_layers"] > 0
    assert facts["engine"]["block_size"] == 16
    assert facts["keep_texts"] is True
    assert "api_key" not in json.dumps(facts)
    assert facts["measured"]["decode_by_batch"]
    points = until(lambda: with_points(http), "a point")
    assert len({len(values) for name, values in points.items() if name != "interval_s"}) == 1
    assert points["server_memory"][-1] > 5e7  # of frontend and engine
    assert len(shown(http, "/slo")["objectives"]) == 7
    metrics = watched.metrics()
    assert metrics["penstock_inter_token_latency_seconds_count"] > 20
    assert metrics["penstock_engine_process_resident_memory_bytes"] > 1e7
    assert metrics["penstock_steps_total"] >= 30


def with_points(http: httpx.Client) -> dict[str, Any] | None:
    told = shown(http, "/observe/history", seconds=60)
    return told if told["t"] else None


def test_the_interface_is_served_with_a_strict_policy(http: httpx.Client) -> None:
    root = http.get("/ui")
    assert (root.status_code, root.headers["location"]) == (308, "/ui/")
    page = http.get("/ui/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    if page.status_code == 503:
        assert "has not been built" in page.text
        return
    assert page.status_code == 200
    for asset in re.findall(r'(?:src|href)="(/ui/assets/[^"]+)"', page.text):
        found = http.get(asset)
        assert (found.status_code, "immutable" in found.headers["cache-control"]) == (200, True)
    assert http.get("/ui/requests").headers["content-type"].startswith("text/html")
    assert http.get("/ui/assets/none.js").status_code == 404
    for path in ("/ui/../settings.py", "/ui/%2e%2e/settings.py", "/ui/..%2fsettings.py", "/ui//etc/passwd"):
        assert "Penstock" not in http.get(path).text or http.get(path).headers["content-type"].startswith("text/html")
        assert "frozen" not in http.get(path).text
    for path in ("/ui/a%00b.js", f"/ui/{'a' * 300}.js", f"/ui/{'a/' * 3000}b.js"):  # no file can be called that
        assert http.get(path).status_code == 404


def test_a_trace_goes_through(http: httpx.Client) -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    body = {"model": http.get("/v1/models").json()["data"][0]["id"], "prompt": "a", "max_tokens": 1}
    answer = http.post("/v1/completions", json=body, headers=headers)
    _, trace, span, flags = answer.headers["traceresponse"].split("-")
    assert (trace, flags) == (TRACE, "01")
    assert span != SPAN
    assert shown(http, f"/observe/requests/{answer.headers['x-request-id']}")["trace_id"] == TRACE
    assert "traceresponse" not in http.post("/v1/completions", json=body).headers


def test_it_can_be_turned_off(tiny: Path) -> None:
    with Server(tiny, "--no-events", "--kv-memory", "100MB") as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
            ask(http, "unseen")
            answer = http.get("/observe/requests")
        assert answer.status_code == 404
        assert "--no-events" in answer.json()["error"]["message"]
        assert "penstock_steps_total" not in server.metrics()
