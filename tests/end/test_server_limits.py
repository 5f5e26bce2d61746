"""Limits of keys and tenants on running servers: what clients are told, and that no crowd gets past them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from helpers.midnight import keep_off_midnight
from helpers.postgresql import PostgresServer
from helpers.redis_server import RedisServer
from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS

ADMIN = "the-operator"
SETTINGS = """
[cache]
kv_memory = "100MB"
[[models]]
name = "tiny"
model = "{tiny}"
price = {{ input = 1.0, output = 1.0 }}  # USD per million: a token costs a micro-dollar
"""
REQUESTS = 500
OUTPUT = 8


@pytest.fixture(scope="module")
def config(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("limits") / "penstock.toml"
    file.write_text(SETTINGS.format(tiny=tiny))
    return file


@pytest.fixture(scope="module")
def server(config: Path) -> Iterator[Server]:
    with Server(f"--config={config}", "--keys", admin_key=ADMIN) as server:
        yield server


def admin(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {ADMIN}"}, timeout=PATIENCE_S)


def new_key(server: Server, tenant: str, **limits: Any) -> dict[str, Any]:
    with admin(server) as http:
        answer = http.post("/admin/keys", json={"tenant": tenant, **limits})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def client(server: Server, tenant: str, **limits: Any) -> openai.OpenAI:
    return server.client(api_key=new_key(server, tenant, **limits)["key"])


def generate(sdk: openai.OpenAI, max_tokens: int, **more: Any) -> Any:
    body = {"ignore_eos": True}
    return sdk.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=max_tokens, extra_body=body, **more)


def live_use(server: Server, **query: str) -> dict[str, Any]:
    with admin(server) as http:
        return {one["key"] or "": one for one in http.get("/admin/limits", params=query).json()["data"]}


def test_a_client_is_told_what_is_left_and_when_to_come_back(server: Server) -> None:
    with client(server, "told", tokens_per_minute=50, requests_per_minute=10) as sdk:
        raw = sdk.completions.with_raw_response.create(model="tiny", prompt=[5, 6, 7], max_tokens=27)
        assert raw.headers["x-ratelimit-limit-tokens"] == "50"
        assert raw.headers["x-ratelimit-remaining-tokens"] == "20"
        assert raw.headers["x-ratelimit-reset-tokens"] == "1m0s"
        assert (raw.headers["x-ratelimit-limit-requests"], raw.headers["x-ratelimit-remaining-requests"]) == ("10", "9")
        used = raw.parse().usage.total_tokens
        with pytest.raises(openai.RateLimitError) as caught:
            generate(sdk, 50 - used - 2)
        error = caught.value
        assert (error.code, error.type) == ("rate_limit_exceeded", "tokens")
        assert "tokens_per_minute" in error.message
        assert 0 < int(error.response.headers["retry-after"]) <= 60
        assert 0 < int(error.response.headers["retry-after-ms"]) <= 60_000
        assert error.response.headers["x-ratelimit-remaining-tokens"] == str(50 - used)
        with sdk.completions.create(model="tiny", prompt=[5], max_tokens=2, stream=True) as stream:
            assert stream.response.headers["x-ratelimit-remaining-requests"] == "8"
        with pytest.raises(openai.BadRequestError, match="at most 47 tokens") as impossible:
            generate(sdk, 48)
        assert impossible.value.param == "max_tokens"


def test_a_spent_budget_is_an_insufficient_quota(server: Server) -> None:
    keep_off_midnight()
    with client(server, "poor", usd_per_day=30e-6) as sdk:
        assert generate(sdk, 20).usage.total_tokens == 23
        with pytest.raises(openai.RateLimitError) as caught:
            generate(sdk, 5)
        assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
        midnight_s = 86_400 - time.time() % 86_400
        assert abs(int(caught.value.response.headers["retry-after"]) - midnight_s) < PATIENCE_S
        assert generate(sdk, 4).usage.total_tokens == 7


def test_a_stream_holds_its_place_until_its_end_or_its_client_has_gone(server: Server) -> None:
    with client(server, "single", concurrent_requests=1) as sdk:
        stream = generate(sdk, ENDLESS_TOKENS, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="concurrent_requests"):
            generate(sdk, 1)
        stream.close()
        until(lambda: live_use(server, tenant="single")[""]["concurrent_requests"]["reserved"] == 0, "the end")
        for _ in range(5):  # each ends before the client knows
            generate(sdk, 2)
            assert len(list(generate(sdk, 2, stream=True))) > 0


def test_metrics_show_limits(server: Server) -> None:
    with admin(server) as http:
        text = http.get("/metrics").text
        ready = http.get("/ready").json()
    assert (ready["status"], ready["limits"], ready["ledger"]) == ("ready", "available", "available")
    assert 'penstock_limits_rejected_total{limit="concurrent_requests",owner="key"}' in text


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer(password="s3cret") as server:
        yield server


@pytest.fixture(scope="module")
def two_servers(config: Path, redis: RedisServer) -> Iterator[list[Server]]:
    """They share keys and usage in PostgreSQL, and limits in Redis."""
    with ExitStack() as stack:
        postgresql = stack.enter_context(PostgresServer())
        shared = {"admin_key": ADMIN, "redis": redis.url, "database": postgresql.url("tenants")}
        yield [stack.enter_context(Server(f"--config={config}", "--keys", **shared)) for _ in range(2)]


async def crowd(servers: list[Server], keys: list[str], tenant: str) -> tuple[list[httpx.Response], list[Any]]:
    """All requests at once, and what /admin/limits says meanwhile."""
    limits = httpx.Limits(max_connections=None)
    seen: list[Any] = []
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits) as http:

        async def request(number: int) -> httpx.Response:
            body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": OUTPUT, "ignore_eos": True}
            headers = {"authorization": f"Bearer {keys[number % len(keys)]}"}
            return await http.post(f"{servers[number % 2].api}/completions", json=body, headers=headers)

        over = asyncio.Event()

        async def watch() -> None:
            # Connections of its own: the server may close an idle one of the crowd's just when it is used again.
            headers = {"authorization": f"Bearer {ADMIN}"}
            fresh = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(timeout=PATIENCE_S, limits=fresh, headers=headers) as watcher:
                while not over.is_set():  # not cancelled: that could leave a socket behind
                    answer = await watcher.get(f"{servers[0].url}/admin/limits", params={"tenant": tenant})
                    seen.extend(answer.json()["data"])

        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*(request(number) for number in range(REQUESTS)))
        over.set()
        await watching
    return answers, seen


@pytest.mark.databases
@pytest.mark.parametrize(
    ("field", "limit"), [("tokens_per_minute", 500), ("concurrent_requests", 5), ("usd_per_day", 400e-6)]
)
@pytest.mark.parametrize("owner", ["key", "tenant"])
def test_500_requests_at_two_servers_stay_within_a_limit(
    two_servers: list[Server], owner: str, field: str, limit: float
) -> None:
    keep_off_midnight()
    tenant, first = f"{owner}-{field.replace('_', '-')}", two_servers[0]
    made = [
        new_key(first, tenant, **({field: limit} if owner == "key" else {})) for _ in range(1 if owner == "key" else 3)
    ]
    if owner == "tenant":
        with admin(first) as http:
            assert http.post(f"/admin/tenants/{tenant}", json={field: limit}).status_code == 200
    known = two_servers[1].client  # the other server learns of keys within a second
    for key in made:
        until(lambda key=key: _knows(known(api_key=key["key"])), "the keys at the other server")
    begun = time.monotonic()
    answers, seen = asyncio.run(crowd(two_servers, [key["key"] for key in made], tenant))
    lasted_s = time.monotonic() - begun

    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    code = "insufficient_quota" if field == "usd_per_day" else "rate_limit_exceeded"
    for answer in answers:
        if answer.status_code == 429:
            error = answer.json()["error"]
            assert error["code"] == code
            assert owner in error["message"]
            assert int(answer.headers["retry-after"]) >= 1
    usages = [answer.json()["usage"] for answer in answers if answer.status_code == 200]
    assert all(usage["total_tokens"] == 3 + OUTPUT for usage in usages)
    shown = [one for one in seen if one["owner"] == owner]
    assert shown
    for one in shown:
        assert one[field]["settled"] + one[field]["reserved"] <= limit + 1e-12, json.dumps(one)
    if field == "tokens_per_minute":
        assert lasted_s > 60 or statuses[200] == limit // (3 + OUTPUT)  # full, and not by one more
    elif field == "usd_per_day":
        assert statuses[200] == round(limit * 1e6) // (3 + OUTPUT)
    for server in two_servers:
        for use in live_use(server, tenant=tenant).values():
            assert use["concurrent_requests"]["reserved"] == 0
            assert use["tokens_per_minute"]["reserved"] == use["usd_per_day"]["reserved"] == 0
    spent = live_use(first, tenant=tenant)[""]["usd_per_day"]["settled"]
    assert round(spent * 1e6) == sum(usage["total_tokens"] for usage in usages)


@pytest.mark.databases
def test_while_redis_is_away_requests_are_rejected_and_ready_says_so(
    two_servers: list[Server], redis: RedisServer
) -> None:
    """And when it is back without its data, what was spent is known from the ledger."""
    keep_off_midnight()
    server = two_servers[0]
    with client(server, "patient", usd_per_day=30e-6) as sdk:
        assert generate(sdk, 20).usage.total_tokens == 23
        redis.stop()
        with pytest.raises(openai.InternalServerError) as caught:
            generate(sdk, 1)
        assert (caught.value.status_code, caught.value.code) == (503, "limits_unavailable")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        ready = httpx.get(f"{server.url}/ready", timeout=PATIENCE_S)
        assert (ready.status_code, ready.json()["limits"]) == (503, "unavailable")
        with admin(server) as http:
            assert "penstock_limits_available 0.0" in http.get("/metrics").text
            assert http.get("/admin/limits").status_code == 503
        redis.start()
        until(lambda: server.status("/ready") == 200, "Redis again")
        with pytest.raises(openai.RateLimitError) as spent:
            generate(sdk, 5)
        assert spent.value.code == "insufficient_quota"
        assert generate(sdk, 4).usage.total_tokens == 7
    for one in two_servers:
        assert "s3cret" not in one.log


def _knows(sdk: openai.OpenAI) -> bool:
    with sdk:
        try:
            return bool(sdk.models.list().data)
        except openai.AuthenticationError:
            return False
