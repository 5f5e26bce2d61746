"""A server with several frontend processes is one server: whichever of them a client reaches, what it sees is whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from helpers.adapter_samples import write_adapter
from helpers.midnight import keep_off_midnight
from helpers.server_process import PATIENCE_S, Server, alive, command, environment, until
from helpers.tiny_models import ENDLESS_TOKENS
from penstock.store.resolve import resolve

FRONTENDS = 4
ADMIN = "the-operator"
NUMBER = "x-penstock-frontend"
SETTINGS = """
[cache]
kv_memory = "100MB"
[[models]]
name = "tiny"
model = "{tiny}"
price = {{ input = 1.0, output = 1.0 }}  # USD per million: a token costs a micro-dollar
adapters = [{{ name = "style", source = "{adapter}", aliases = ["fancy"] }}]
"""
PROMPT, OUTPUT = [5, 6, 7], 8
STREAMED = 500  # tokens
CROWD = 120
BODY = {"model": "tiny", "prompt": PROMPT, "ignore_eos": True}


@pytest.fixture(scope="module")
def config(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("frontends") / "penstock.toml"
    adapter = write_adapter(file.parent / "style", resolve(str(tiny)).spec, size=2.0)
    file.write_text(SETTINGS.format(tiny=tiny, adapter=adapter))
    return file


@pytest.fixture(scope="module")
def server(config: Path) -> Iterator[Server]:
    folders = ("--adapter-folders", config.parent)
    with Server(f"--config={config}", "--keys", "--frontends", FRONTENDS, *folders, admin_key=ADMIN) as server:
        yield server


def admin(server: Server) -> httpx.Client:
    """Each request on a connection of its own: another frontend may get it."""
    headers = {"authorization": f"Bearer {ADMIN}"}
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S, limits=limits)


def new_key(server: Server, tenant: str, **limits: Any) -> dict[str, Any]:
    with admin(server) as http:
        made: dict[str, Any] = http.post("/admin/keys", json={"tenant": tenant, **limits}).raise_for_status().json()
    return made


def use(server: Server, tenant: str) -> dict[str, Any]:
    with admin(server) as http:
        rows = http.get("/admin/limits", params={"tenant": tenant}).json()["data"]
    return next(row for row in rows if row["owner"] == "tenant")


def usage(server: Server, tenant: str) -> dict[str, Any]:
    """Of a tenant, as the ledger has it."""
    with admin(server) as http:
        rows = http.get("/usage", params={"group_by": "tenant"}).raise_for_status().json()["data"]
    return next((row for row in rows if row["tenant"] == tenant), {})


def metric(server: Server, name: str) -> float:
    with admin(server) as http:
        lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


async def crowd(server: Server, key: str) -> list[httpx.Response]:
    """Requests at once, each on a connection of its own."""
    headers = {"authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits, headers=headers) as http:
        body = {**BODY, "max_tokens": OUTPUT}
        return await asyncio.gather(*(http.post(f"{server.api}/completions", json=body) for _ in range(CROWD)))


@pytest.mark.parametrize(
    ("field", "limit", "accepted"),
    [
        ("requests_per_minute", 30, 30),
        ("tokens_per_minute", 25 * (len(PROMPT) + OUTPUT) + 3, 25),
        ("usd_per_day", (20 * (len(PROMPT) + OUTPUT) + 3) * 1e-6, 20),
    ],
)
def test_no_limit_is_passed(server: Server, field: str, limit: float, accepted: int) -> None:
    keep_off_midnight()
    tenant = field.replace("_", "-")
    key = new_key(server, tenant, **{field: limit})
    answers = asyncio.run(crowd(server, key["key"]))
    assert Counter(answer.status_code for answer in answers) == {200: accepted, 429: CROWD - accepted}
    assert {answer.headers[NUMBER] for answer in answers} == {str(1 + place) for place in range(FRONTENDS)}
    used = [answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200]
    recorded = usage(server, tenant)
    assert recorded["requests"] == accepted
    assert recorded["input_tokens"] + recorded["output_tokens"] == sum(used)
    assert round(recorded["cost_usd"] * 1e6) == sum(used)
    open_now = use(server, tenant)
    assert open_now["concurrent_requests"]["reserved"] == open_now["tokens_per_minute"]["reserved"] == 0


def test_no_more_streams_at_once_than_a_key_may_have(server: Server) -> None:
    key = new_key(server, "streams", concurrent_requests=5)

    async def run() -> tuple[Counter[int], int]:
        headers = {"authorization": f"Bearer {key['key']}"}
        statuses: Counter[int] = Counter()
        everyone, over = asyncio.Event(), asyncio.Event()

        async def one(http: httpx.AsyncClient) -> None:
            body = {**BODY, "max_tokens": ENDLESS_TOKENS, "stream": True}
            async with http.stream("POST", f"{server.api}/completions", json=body) as response:
                statuses[response.status_code] += 1
                if statuses.total() == CROWD:
                    everyone.set()
                await over.wait()

        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits, headers=headers) as http:
            tasks = [asyncio.create_task(one(http)) for _ in range(CROWD)]
            await asyncio.wait_for(everyone.wait(), PATIENCE_S)
            held = use(server, "streams")["concurrent_requests"]["reserved"]
            over.set()
            await asyncio.gather(*tasks)
        return statuses, held

    statuses, held = asyncio.run(run())
    assert (statuses, held) == ({200: 5, 429: CROWD - 5}, 5)
    until(lambda: use(server, "streams")["concurrent_requests"]["reserved"] == 0, "the end of the streams")


def test_a_key_that_is_revoked_is_revoked_everywhere_at_once(server: Server) -> None:
    made = new_key(server, "revoked")
    headers = {"authorization": f"Bearer {made['key']}"}

    def statuses() -> dict[str, int]:
        """Of each frontend."""
        seen: dict[str, int] = {}
        while len(seen) < FRONTENDS:
            with httpx.Client(headers=headers, timeout=PATIENCE_S) as http:
                answer = http.post(f"{server.api}/completions", json={**BODY, "max_tokens": 1})
                assert seen.setdefault(answer.headers[NUMBER], answer.status_code) == answer.status_code
        return seen

    assert set(statuses().values()) == {200}  # as soon as it was made
    with admin(server) as http:
        http.delete(f"/admin/keys/{made['id']}").raise_for_status()
    assert set(statuses().values()) == {401}


class At:
    """A client of the OpenAI SDK whose connection is with one frontend."""

    def __init__(self, server: Server, key: str, number: int) -> None:
        while True:
            self.http = httpx.Client(timeout=PATIENCE_S)
            if self.http.get(f"{server.url}/health").headers[NUMBER] == str(number):
                break
            self.http.close()
        self.sdk = openai.OpenAI(base_url=server.api, api_key=key, http_client=self.http, max_retries=0)

    def __enter__(self) -> openai.OpenAI:
        return self.sdk

    def __exit__(self, *_: object) -> None:
        self.http.close()


def test_a_stored_response_is_found_through_every_frontend(server: Server) -> None:
    key = new_key(server, "stored")["key"]
    with At(server, key, 1) as first, At(server, key, 2) as second, At(server, key, 3) as third:
        for _ in range(10):  # the next request may be there before the first frontend's message
            made = first.responses.create(model="tiny", input="a", max_output_tokens=16)
            assert second.responses.retrieve(made.id).output_text == made.output_text
            more = third.responses.create(model="tiny", input="b", previous_response_id=made.id, max_output_tokens=16)
            listed = first.responses.input_items.list(more.id).data
            assert len(listed) == 3
            second.responses.delete(made.id)
            for sdk in (first, third):
                with pytest.raises(openai.NotFoundError):
                    sdk.responses.retrieve(made.id)
            with pytest.raises(openai.NotFoundError) as gone:
                first.responses.create(model="tiny", input="c", previous_response_id=made.id)
            assert gone.value.param == "previous_response_id"
        chat = first.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], store=True, max_tokens=4
        )
        assert third.chat.completions.retrieve(chat.id).id == chat.id


def test_what_frontends_count_adds_up(server: Server) -> None:
    key = new_key(server, "counted", scopes=["inference", "observe"])["key"]
    names = ("penstock_requests_total", "penstock_generation_tokens_total", "penstock_prompt_tokens_total")
    before = [metric(server, name) for name in names]
    answers = asyncio.run(crowd(server, key))
    assert {answer.status_code for answer in answers} == {200}
    after = [metric(server, name) for name in names]  # at once
    assert [new - old for new, old in zip(after, before, strict=True)] == [CROWD, CROWD * OUTPUT, CROWD * len(PROMPT)]
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as http:
        shown = {one["id"]: one for one in http.get("/observe/requests?limit=200").json()["requests"]}
        for answer in answers:
            one = shown[answer.json()["id"].removeprefix("cmpl-")]
            assert (one["state"], one["finish"], one["output_tokens"]) == ("done", "length", OUTPUT)
            assert one["ttft_us"] is not None
            assert one["queue_us"] is not None
    with admin(server) as http:
        assert http.get("/observe/check").json()["ok"] is True


async def client_at(server: Server, key: str, number: int) -> httpx.AsyncClient:
    """Its connection is with one frontend."""
    while True:
        http = httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S)
        if (await http.get(f"{server.url}/health")).headers[NUMBER] == str(number):
            return http
        await http.aclose()


def test_a_frontend_that_is_killed_takes_only_its_own_requests(server: Server) -> None:
    """Nothing of them is counted twice, or forgotten; another takes its place."""
    key = new_key(server, "unlucky", concurrent_requests=40, scopes=["inference", "observe"])["key"]
    victim = min(server.frontends())  # the first that was started

    async def stream(number: int, tokens: int, begun: asyncio.Event) -> int | None:
        """The output tokens of an answer; None: it broke off."""
        body = {**BODY, "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
        async with contextlib.aclosing(await client_at(server, key, number)) as http:
            try:
                async with http.stream("POST", f"{server.api}/completions", json=body) as response:
                    assert response.headers[NUMBER] == str(number)
                    found = None
                    async for line in response.aiter_lines():
                        begun.set()
                        if line.startswith("data: {") and (
                            used := json.loads(line.removeprefix("data: ")).get("usage")
                        ):
                            found = used["completion_tokens"]
                    return found
            except httpx.TransportError:
                return None

    async def run() -> tuple[list[int | None], list[int | None]]:
        events = [asyncio.Event() for _ in range(12)]
        others = [asyncio.create_task(stream(2 + place % 3, STREAMED, events[place])) for place in range(9)]
        doomed = [asyncio.create_task(stream(1, ENDLESS_TOKENS, events[9 + place])) for place in range(3)]
        for event in events:
            await asyncio.wait_for(event.wait(), PATIENCE_S)
        os.kill(victim, signal.SIGKILL)
        return await asyncio.gather(*others), await asyncio.gather(*doomed)

    others, doomed = asyncio.run(run())
    assert others == [STREAMED] * 9
    assert doomed == [None] * 3
    until(lambda: use(server, "unlucky")["concurrent_requests"]["reserved"] == 0, "the end of what it had reserved")
    recorded = usage(server, "unlucky")
    assert recorded["requests"] == 12
    assert recorded["output_tokens"] == 9 * STREAMED  # what was lost is not charged
    assert recorded["input_tokens"] == 9 * len(PROMPT)
    assert round(use(server, "unlucky")["usd_per_day"]["settled"] * 1e6) == round(recorded["cost_usd"] * 1e6)
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as http:
        shown = http.get("/observe/requests?limit=200").json()["requests"]
    assert Counter(one["finish"] for one in shown) == {"length": 9, "error": 3}
    until(lambda: metric(server, "penstock_num_requests_running") == 0, "the end of all sequences")
    with admin(server) as http:
        assert http.get("/observe/check").json()["ok"] is True
    until(lambda: len(server.frontends()) == FRONTENDS and victim not in server.frontends(), "another frontend")
    with At(server, key, 1) as sdk:  # the next one answers
        assert sdk.completions.create(model="tiny", prompt=PROMPT, max_tokens=2).choices


def test_each_request_ends_once_when_the_engine_dies(server: Server) -> None:
    key = new_key(server, "engines")["key"]

    async def run() -> list[Counter[str]]:
        begun, all_begun = 0, asyncio.Event()

        async def one(http: httpx.AsyncClient) -> Counter[str]:
            nonlocal begun
            ends: Counter[str] = Counter()
            body = {**BODY, "max_tokens": ENDLESS_TOKENS, "stream": True}
            async with http.stream("POST", f"{server.api}/completions", json=body) as response:
                first = True
                async for line in response.aiter_lines():
                    if first and line.startswith("data: "):
                        first = False
                        begun += 1
                        if begun == 12:
                            all_begun.set()
                    if line.startswith("data: {") and "error" in (event := json.loads(line.removeprefix("data: "))):
                        ends[event["error"]["code"]] += 1
                    ends["done"] += line == "data: [DONE]"
            return +ends

        limits = httpx.Limits(max_connections=None)
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits, headers=headers) as http:
            tasks = [asyncio.create_task(one(http)) for _ in range(12)]
            await asyncio.wait_for(all_begun.wait(), PATIENCE_S)
            server.kill_engine()
            return await asyncio.gather(*tasks)

    assert all(ends == {"engine_died": 1} for ends in asyncio.run(run()))
    until(lambda: server.status("/ready") == 200, "the next engine")
    answers = asyncio.run(crowd(server, key))  # some of them before their frontend has its link to it
    assert {answer.status_code for answer in answers} <= {200, 503}
    until(lambda: {one.status_code for one in asyncio.run(crowd(server, key))} == {200}, "links to the next engine")
    until(lambda: use(server, "engines")["concurrent_requests"]["reserved"] == 0, "the end of all requests")


def texts(server: Server, model: str) -> dict[str, str]:
    """What every frontend answers, or the code of its error."""
    body = {**BODY, "model": model, "max_tokens": OUTPUT, "temperature": 0}
    found: dict[str, str] = {}

    def ask() -> bool:
        answer = http.post("/v1/completions", json=body)
        told = answer.json()
        found[answer.headers[NUMBER]] = told["error"]["code"] if "error" in told else told["choices"][0]["text"]
        return len(found) == FRONTENDS

    with admin(server) as http:
        until(ask, "an answer of each frontend")
    return found


def test_adapters_of_the_settings_are_served_by_every_frontend(server: Server) -> None:
    (text,) = set(texts(server, "tiny@style").values())
    assert set(texts(server, "tiny").values()) != {text}
    with admin(server) as http:
        told = http.post("/v1/completions", json={**BODY, "model": "tiny@style", "max_tokens": OUTPUT}).json()
        assert told["model"] == "tiny@style"
        listed = http.get("/admin/adapters").raise_for_status().json()["data"]
    assert [one["id"] for one in listed] == ["tiny@style"]


def test_an_adapter_that_comes_and_goes_does_so_in_every_frontend(server: Server, config: Path, tiny: Path) -> None:
    spec = resolve(str(tiny)).spec
    for name in ("late", "later"):
        write_adapter(config.parent / name, spec, size=2.0, seed=len(name))
    with admin(server) as http:
        assert set(texts(server, "tiny@late").values()) == {"model_not_found"}
        added = http.post("/admin/adapters", json={"name": "late", "source": "late", "aliases": ["tardy"]})
        (first,) = set(texts(server, "tardy").values())  # all have it once it is answered
        again = http.post("/admin/adapters", json={"name": "late", "source": "later"})
        with (config.parent / "later" / "adapter_config.json").open("rb") as described:
            weights = (config.parent / "later" / "adapter_model.safetensors").read_bytes()
            sent = http.post(
                "/admin/adapters/upload",
                data={"name": "late", "replace": "true"},
                files={"config": described, "weights": weights},
            )
        (second,) = set(texts(server, "tiny@late").values())
        assert [added.status_code, again.status_code, sent.status_code] == [200, 409, 200]
        assert len({first, second, *texts(server, "tiny").values()}) == 3
        victim = max(server.frontends())
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(server.frontends()) == FRONTENDS and victim not in server.frontends(), "another frontend")
        assert set(texts(server, "tiny@late").values()) == {second}  # the next one has it, too
        assert http.post("/v1/unload_lora_adapter", json={"lora_name": "late"}).is_success
        assert set(texts(server, "tiny@late").values()) == {"model_not_found"}
        assert [one["id"] for one in http.get("/admin/adapters").json()["data"]] == ["tiny@style"]


def test_an_adapter_goes_when_its_requests_in_all_frontends_have_ended(
    server: Server, config: Path, tiny: Path
) -> None:
    write_adapter(config.parent / "busy", resolve(str(tiny)).spec)
    body = {**BODY, "model": "tiny@busy", "max_tokens": ENDLESS_TOKENS, "stream": True}
    with admin(server) as http, admin(server) as client:
        http.post("/admin/adapters", json={"name": "busy", "source": "busy"}).raise_for_status()
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            (listed,) = (one for one in http.get("/admin/adapters").json()["data"] if one["name"] == "busy")
            late = http.delete("/admin/adapters/tiny@busy?timeout_s=0.1")
            assert (listed["open"], late.status_code) == (1, 504)
            assert "1 of it still run" in late.json()["error"]["message"]
            assert next(line for line in lines if line).startswith("data: ")  # it goes on
        until(lambda: metric(server, "penstock_num_requests_running") == 0, "the end of the stream")
        assert http.get("/observe/check").json()["ok"] is True


def test_a_prefix_that_one_frontend_has_sent_is_known_to_all(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f'[[models]]\nname = "tiny"\nmodel = "{tiny}"\nreplicas = 2\nthreads = 1\nkv_memory = "60MB"\n')
    prompts = [[5 + seed, *range(6, 70)] for seed in range(4)]
    with Server(f"--config={file}", "--frontends", 2) as server, At(server, "-", 1) as one, At(server, "-", 2) as other:

        def ask(sdk: openai.OpenAI, prompt: list[int]) -> tuple[str, int]:
            """The replica, and the cached tokens."""
            answer = sdk.completions.with_raw_response.create(model="tiny", prompt=prompt, max_tokens=1)
            usage = answer.parse().usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            return answer.headers["x-penstock-deployment"], usage.prompt_tokens_details.cached_tokens or 0

        first = [ask(one, prompt)[0] for prompt in prompts]
        assert first == ["tiny/0", "tiny/1"] * 2
        for _ in range(2):  # by then the control process has all of it, and then the other frontend
            server.metrics()
        again = [ask(other, prompt) for prompt in prompts[1::2]]
        assert again == [("tiny/1", 64)] * 2


def test_models_that_come_and_go_are_refused(server: Server, config: Path, tmp_path: Path) -> None:
    with admin(server) as http:
        told = http.post("/sleep?model=tiny")
    assert told.status_code == 400
    assert "several frontends" in told.json()["error"]["message"]
    file = tmp_path / "penstock.toml"
    file.write_text(config.read_text() + 'load = "demand"\n')
    done = subprocess.run(
        command(f"--config={file}", "--port", 0, "--frontends", 2),
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "frontends 2: " in done.stderr
    assert "demand" in done.stderr or "load" in done.stderr


def test_nothing_is_left_when_the_control_process_is_killed(config: Path) -> None:
    with Server(f"--config={config}", "--frontends", 2) as server:
        children = server.children()
        assert len(server.frontends()) == 2
        server.process.kill()
        server.process.wait()
        until(lambda: not any(map(alive, children)), "the end of engine and frontends")
