"""Two keys on one server: each is a tenant, and neither learns anything of the other but sums."""

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS
from penstock.flow.prefix import KEY_BYTES, TOKEN_BYTES, block_key, pack_tokens, root_key
from penstock.gateway.keys.configured import tenant_of_key

ALICE, BOB = "alice-key", "bob-key"
SECRETS = {"slo_webhook": "http://127.0.0.1:9/s3cret"}
STORY = "It was a dark and stormy night, and nobody but Alice knew what the door would ask her for. My PIN is "
PIN = STORY + "4711, and the door opens at noon."
BLOCK = 16


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    options = ("--log-format", "json", "--keep-texts", "--kv-memory", "100MB", "--slo-queue-depth", "1000")
    with Server(tiny, *options, api_key=f"{ALICE},{BOB}", **SECRETS) as server:
        yield server


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def alice(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=headers(ALICE), timeout=PATIENCE_S) as http:
        yield http


@pytest.fixture
def bob(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=headers(BOB), timeout=PATIENCE_S) as http:
        yield http


def post(http: httpx.Client, path: str, **body: Any) -> httpx.Response:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def complete(http: httpx.Client, prompt: str, **more: Any) -> httpx.Response:
    return post(http, "/v1/completions", prompt=prompt, max_tokens=4, ignore_eos=True, **more)


def cached(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def explain(http: httpx.Client, prompt: str) -> dict[str, Any]:
    told = post(http, "/observe/cache/explain", prompt=prompt).json()
    return {name: value for name, value in told.items() if name != "t"}


def get(http: httpx.Client, path: str, **params: Any) -> dict[str, Any]:
    answer = http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# --- the cache


def test_a_pin_cannot_be_guessed(alice: httpx.Client, bob: httpx.Client) -> None:
    """Digit by digit, as far as an explanation tells where a guess leaves what is cached; or all at once, by what is
    found."""
    complete(alice, PIN)
    guesses = [PIN.replace("4711", pin) for pin in ("4711", "4712", "4799", "9999")]
    told = [explain(bob, guess) for guess in guesses]
    assert all(one == told[0] for one in told)
    assert told[0] | {"reason": "nothing_alike", "matched_tokens": 0, "cached_tokens": 0, "text": None} == told[0]
    assert explain(alice, guesses[1])["diverged_at"] > len(STORY) // 8, "she may ask about her own"

    for guess in guesses:
        assert cached(complete(bob, guess, cache_salt=guess)) == 0
    assert post(bob, "/observe/lab", prompt=PIN).json()["cached_tokens"] == 0
    assert cached(complete(alice, PIN)) >= BLOCK
    assert cached(complete(bob, PIN)) >= BLOCK, "he finds what is his own"


def test_cached_prefixes_are_shown_to_their_tenant(alice: httpx.Client, bob: httpx.Client) -> None:
    complete(alice, "Alice's alone. " + PIN)
    hers, his = (get(http, "/observe/cache/tree") for http in (alice, bob))
    assert hers["total"] > 0
    names = {node["id"] for node in hers["nodes"]}
    assert not names & {node["id"] for node in his["nodes"]}
    complete(alice, "Alice's, once more. " + PIN)
    assert get(bob, "/observe/cache/tree") == his


def test_names_in_the_tree_cannot_be_computed_outside(alice: httpx.Client) -> None:
    """By one who knows the text, the key, and all of this code."""
    prompt = "Guess me. " + PIN
    complete(alice, prompt)
    names = {node["id"] for node in get(alice, "/observe/cache/tree", limit=2000)["nodes"]}
    packed = pack_tokens(alice.post("/tokenize", json={"prompt": prompt}).json()["tokens"][:BLOCK])
    assert len(packed) == BLOCK * TOKEN_BYTES
    tenants = ("", tenant_of_key(ALICE.encode()))
    roots = [root_key(secret, tenant, "") for secret in (b"", bytes(32)) for tenant in tenants]
    roots += [blake2b(b"", digest_size=KEY_BYTES, person=b"chain root").digest(), b""]
    assert names
    assert not names & {block_key(root, packed).hex()[:BLOCK] for root in roots}


# --- requests


def test_a_request_is_its_tenants(alice: httpx.Client, bob: httpx.Client) -> None:
    answer = complete(alice, PIN, seed=7)
    name, request_id = answer.json()["id"], answer.headers["x-request-id"]
    told = get(alice, f"/observe/requests/{name}")
    assert PIN in told["texts"]["prompts"][0]
    for alias in (name, name.removeprefix("cmpl-"), request_id, str(told["number"])):
        assert alice.get(f"/observe/requests/{alias}").status_code == 200
        missing = bob.get(f"/observe/requests/{alias}")
        unknown = bob.get(f"/observe/requests/{'0' * len(alias)}")
        assert (missing.status_code, unknown.status_code) == (404, 404)
        assert missing.text.replace(f"'{alias}'", "") == unknown.text.replace(f"'{'0' * len(alias)}'", "")
        assert bob.get("/observe/cache/tree", params={"request": alias}).status_code == 404

    bob.headers["x-request-id"] = request_id  # of all ids he could choose
    mine = complete(bob, "Bob's").json()["id"]
    assert get(bob, f"/observe/requests/{request_id}")["id"] in mine
    assert get(alice, f"/observe/requests/{request_id}")["id"] in name
    for found in (get(bob, "/observe/requests"), get(bob, "/observe/requests", q="PIN"), get(bob, "/observe/replay")):
        assert told["number"] not in {one.get("request", one.get("number")) for one in found["requests"]}


def test_what_runs_is_seen_by_its_tenant_alone(alice: httpx.Client, bob: httpx.Client) -> None:
    secret = "My other PIN is 0815."  # bob's own requests have her first one
    body = {"prompt": secret + PIN, "max_tokens": ENDLESS_TOKENS, "ignore_eos": True, "stream": True}
    with alice.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        chunk = json.loads(next(lines).removeprefix("data: "))
        name = chunk["id"].removeprefix("cmpl-")
        assert name in _tick(alice)
        shown = [_tick(bob)]
        for path in ("/observe/steps", "/observe/cache", "/observe/requests", "/observe/replay", "/slo"):
            found = bob.get(path)
            assert found.status_code == 200
            shown.append(found.text)
        assert not any(name in text or secret in text for text in shown)
        assert secret in alice.get("/observe/requests").text, "her own list has it"
        own, other = get(alice, "/observe/cache"), get(bob, "/observe/cache")
        assert [one["id"].startswith(name) for one in own["sequences"].values()] == [True]
        assert other["sequences"] == {}
        assert {owner for group in other["groups"] for *_, owner in group["runs"]} == {0}
        assert other["groups"][0]["held"] > 0, "how much is held is no secret"
        assert set(get(bob, "/observe/steps", last=1)["steps"]["rows"]) == {1}
        assert get(bob, "/observe/steps", last=1)["rows"]["seq"] == []


def _tick(http: httpx.Client) -> str:
    """The first news of the live feed."""
    with http.stream("GET", "/observe/live", params={"steps": 1, "interval_ms": 100}) as stream:
        lines = stream.iter_lines()
        return next(line for line in lines if line.startswith("data: ") and '"stats"' in line)


def test_metrics_are_of_all(alice: httpx.Client, bob: httpx.Client) -> None:
    def prompts(http: httpx.Client) -> float:
        lines = http.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith("penstock_prompt_tokens_total")).split()[-1])

    before = prompts(bob)
    complete(alice, PIN)
    until(lambda: prompts(bob) > before, "her prompt in the sum")
    assert prompts(bob) == prompts(alice)


# --- responses


def test_a_stored_response_is_its_tenants(alice: httpx.Client, bob: httpx.Client) -> None:
    kept = post(alice, "/v1/responses", input=PIN, max_output_tokens=16).json()["id"]
    later = {"input": "What is my PIN?", "previous_response_id": kept, "max_output_tokens": 16}

    def tried(http: httpx.Client, name: str) -> list[httpx.Response]:
        path = f"/v1/responses/{name}"
        return [
            http.get(path),
            http.get(path, params={"stream": "true"}),
            http.get(f"{path}/input_items"),
            http.post(f"{path}/cancel"),
            http.delete(path),
            http.post("/v1/responses", json=later | {"previous_response_id": name}),
            http.post("/v1/responses/input_tokens", json={"input": "a", "previous_response_id": name}),
        ]

    unknown = "resp_" + "0" * (len(kept) - len("resp_"))
    for hers, none in zip(tried(bob, kept), tried(bob, unknown), strict=True):
        assert hers.status_code == 404
        assert hers.text.replace(kept, unknown) == none.text
    assert get(alice, f"/v1/responses/{kept}")["id"] == kept, "he has deleted nothing"
    assert alice.post("/v1/responses", json=later).status_code == 200
    assert alice.delete(f"/v1/responses/{kept}").status_code == 200
    assert alice.get(f"/v1/responses/{kept}").status_code == 404


# --- keys and other secrets


def test_no_process_behind_the_server_has_its_secrets(server: Server, alice: httpx.Client) -> None:
    post(
        alice,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "a"}],
        max_tokens=1,
        response_format={"type": "json_object"},  # so that there is one who compiles grammars
    )
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in server.children()]
    assert len(environments) >= 2
    for found in environments:
        assert b"PATH=" in found
        for secret in (ALICE, BOB, *SECRETS.values()):
            assert secret.encode() not in found


def test_keys_guard_all_of_it_and_logs_can_be_json(server: Server) -> None:
    for path in (
        "/observe/facts", "/observe/live", "/observe/requests", "/observe/requests/1", "/observe/steps",
        "/observe/replay", "/observe/cache", "/observe/cache/tree", "/observe/history", "/observe/check", "/slo",
    ):  # fmt: skip
        assert server.status(path) == 401, path
    for path in ("/observe/lab", "/observe/cache/explain"):
        assert httpx.post(server.url + path, json={"prompt": "a"}, timeout=PATIENCE_S).status_code == 401, path
    assert server.status("/ui/") in (200, 503)
    facts = httpx.get(f"{server.url}/observe/facts", headers=headers(ALICE), timeout=PATIENCE_S)
    assert facts.status_code == 200
    assert "s3cret" not in facts.text
    assert not any(key in facts.text for key in (ALICE, BOB))

    def logged() -> list[dict[str, Any]]:
        """Once the answer is out, its line follows."""
        lines = [json.loads(line) for line in server.log.splitlines(keepends=True) if line.endswith("\n")]
        asked = [line for line in lines if line["logger"] == "penstock.access" and line["path"] == "/observe/facts"]
        return asked if {line["status"] for line in asked} == {200, 401} else []

    asked = until(logged, "both in the log")
    assert all(line["request_id"].startswith("req-") for line in asked)
    assert "s3cret" not in server.log


def test_the_engines_books_can_be_checked(bob: httpx.Client) -> None:
    told = get(bob, "/observe/check")
    assert (told["ok"], told["wrong"]) == (True, None)
    assert told["us"] > 0
    assert bob.get("/observe/check", params={"deep": "1"}).status_code == 400


def test_how_tenants_share_the_engine_is_for_admins(alice: httpx.Client, bob: httpx.Client) -> None:
    complete(alice, STORY)
    for http in (alice, bob):
        assert http.get("/observe/tenants").status_code == 403
        scrape = http.get("/metrics")
        assert scrape.status_code == 200
        assert "penstock_tenant" not in scrape.text
        assert tenant_of_key(ALICE.encode()) not in scrape.text
