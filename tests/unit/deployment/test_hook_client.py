"""A moderation hook over HTTP, against a server on loopback that answers, fails, stalls or sends too much."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from helpers.scripted_upstream import Exchange, ScriptedUpstream
from penstock.deployment import hook_client
from penstock.deployment.hook_client import HookClient
from penstock.gateway.safety.moderation_hook import Hook, Verdict, make_hook
from penstock.settings import SafetyEntry

TEXT = "a text that nobody logs"
Script = Callable[[Exchange], Awaitable[None]]


def answers(status: int, body: bytes, headers: str = "") -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.respond(status, body, headers)

    return script


async def stall(exchange: Exchange) -> None:
    await exchange.gone.wait()


async def trickle(exchange: Exchange) -> None:
    """Headers at once, a body without an end."""
    await exchange.start_events("application/json")
    await exchange.raw(b'{"results": [')
    await exchange.gone.wait()


async def flood(exchange: Exchange) -> None:
    await exchange.start_events("application/json")
    piece = b" " * (1 << 16)
    while not exchange.gone.is_set():
        try:
            await exchange.raw(piece)
        except ConnectionError:
            return


async def break_off(exchange: Exchange) -> None:
    await exchange.start_events("application/json")
    await exchange.raw(b'{"results": [{"flagged": false}')
    exchange.hang_up()


def judge(url: str, client: HookClient, *, on_failure: str = "closed", timeout_s: float = 60.0) -> Hook:
    entry = SafetyEntry(
        name="judge", hook=f"{url}/check", hook_key_env="KEY", timeout_s=timeout_s, on_failure=on_failure
    )  # type: ignore[arg-type]
    return make_hook(entry, client.post, {"KEY": "s3cret"})


def ask(script: Script, **options: object) -> tuple[Verdict, Hook, list[Exchange]]:
    async def main() -> tuple[Verdict, Hook, list[Exchange]]:
        client = HookClient()
        async with ScriptedUpstream(script).running() as server:
            hook = judge(server.url.removesuffix("/v1"), client, **options)  # type: ignore[arg-type]
            verdict = await hook.check(TEXT)
            await client.close()
            return verdict, hook, server.requests

    return asyncio.run(main())


@pytest.mark.parametrize("flagged", [True, False])
def test_the_verdict_of_the_endpoint_counts(flagged: bool) -> None:
    body = b'{"results": [{"flagged": %s, "categories": {"hate": true}}]}' % str(flagged).lower().encode()
    verdict, hook, (exchange,) = ask(answers(200, body))
    assert verdict == Verdict(flagged, categories=("hate",))
    assert not hook.failures
    assert (exchange.path, exchange.body) == ("/check", {"input": TEXT})
    assert exchange.headers["authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("on_failure", ["open", "closed"])
@pytest.mark.parametrize(
    ("script", "says"),
    [
        (answers(500, b'{"results": [{"flagged": false}]}'), "status 500"),
        (answers(204, b""), "status 204"),
        (answers(302, b"", "location: http://127.0.0.1:9/elsewhere\r\n"), "status 302"),
        (answers(200, b"<html>"), "malformed"),
        (answers(200, b'{"results": [{"flagged": "no"}]}'), "Expected `bool`"),
        (answers(200, b'{"results": {}}'), "Expected `array`"),
        (answers(200, b"[" * 100_000), "Error"),
        (flood, "more than 1000 bytes"),
        (break_off, "Error"),
    ],
)
def test_an_endpoint_that_fails_is_open_or_closed(
    script: Script, says: str, on_failure: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hook_client, "MAX_ANSWER", 1000 if script is flood else 1 << 20)
    verdict, hook, exchanges = ask(script, on_failure=on_failure)
    assert verdict.flagged == (on_failure == "closed")
    assert verdict.failure is not None
    assert says in verdict.failure
    assert hook.failures == {"error": 1}
    assert len(exchanges) == 1  # a redirect is not followed, nothing is tried again
    assert "s3cret" not in caplog.text
    assert TEXT not in caplog.text


@pytest.mark.parametrize("on_failure", ["open", "closed"])
@pytest.mark.parametrize("script", [stall, trickle])
def test_an_endpoint_that_is_slow_is_given_up(script: Script, on_failure: str) -> None:
    verdict, hook, _ = ask(script, on_failure=on_failure, timeout_s=0.05)
    assert verdict == Verdict(on_failure == "closed", "no answer within 0.05 s")
    assert hook.failures == {"timeout": 1}


@pytest.mark.parametrize("on_failure", ["open", "closed"])
def test_an_endpoint_that_is_away(on_failure: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))

        async def main() -> list[bool]:
            client = HookClient()
            hook = judge(f"http://127.0.0.1:{taken.getsockname()[1]}", client, on_failure=on_failure)
            flagged = [(await hook.check(TEXT)).flagged for _ in range(3)]
            assert hook.failures == {"error": 3}
            await client.close()
            return flagged

        assert asyncio.run(main()) == [on_failure == "closed"] * 3
    assert len([record for record in caplog.records if "hook failed" in record.message]) == 1  # logged once
