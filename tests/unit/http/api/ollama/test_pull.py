"""Pulls without a network: what fetches is the test's own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.deployment.protocol import ModelCard, ServedModel
from penstock.deployment.registry import ModelRegistry
from penstock.errors import ModelNotFound, PullFailed, ShuttingDown
from penstock.http.api.ollama.models import details_of
from penstock.http.api.ollama.pull import Fetch, Pulls
from penstock.store.catalogue import CATALOGUE
from penstock.store.progress import Progress

NAME = "qwen2.5-coder-1.5b"
DIGEST = CATALOGUE[NAME].sha256 or ""
SERVED = cast(ServedModel, SimpleNamespace(card=ModelCard(name="smollm2")))


def pulls(fetch: Fetch, closing: Callable[[], bool] = lambda: False) -> Pulls:
    return Pulls(ModelRegistry([SERVED]), closing, fetch)


async def told(lines: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in lines]


def never(name: str, progress: Progress) -> None:
    raise AssertionError("nothing is to be fetched")


@pytest.mark.parametrize("name", ["smollm2", "smollm2:latest"])
def test_the_served_model_is_there(name: str) -> None:
    digest = details_of(SERVED).digest
    assert asyncio.run(told(pulls(never).lines(name))) == [
        {"status": "pulling manifest"},
        {"status": f"pulling {digest[:12]}", "digest": f"sha256:{digest}", "total": 0, "completed": 0},
        {"status": "success"},
    ]


@pytest.mark.parametrize("name", ["llama9", "org/name", "/etc/passwd", "pypi:a/b.gguf", "", f"{NAME}:7b"])
def test_what_is_not_in_the_catalogue_cannot_be_had(name: str) -> None:
    with pytest.raises(ModelNotFound, match="not in the catalogue") as caught:
        pulls(never).find(name)
    assert caught.value.param == "model"


def test_one_of_the_catalogue_is_fetched() -> None:
    async def play() -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        seen = threading.Semaphore(0)  # each step waits until the one before it has been read

        def fetch(name: str, progress: Progress) -> None:
            assert name == NAME
            for step in ((name, 0, 200), (name, 200, 200), (f"{name}: checking", 50, 200)):
                progress(*step)
                assert seen.acquire(timeout=60)

        async for line in pulls(fetch).lines(f"{NAME}:latest"):
            lines.append(json.loads(line))
            if "completed" in lines[-1]:
                seen.release()
        return lines

    first, *steps, not_served, last = asyncio.run(play())
    assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
    assert [(step["status"], step["completed"]) for step in steps] == [
        (f"pulling {DIGEST[:12]}", 0), (f"pulling {DIGEST[:12]}", 200), ("checking", 50),
    ]  # fmt: skip
    assert all(step["digest"] == f"sha256:{DIGEST}" and step["total"] == 200 for step in steps)
    assert not_served["status"] == f"pulled; this server goes on with smollm2:latest: penstock serve {NAME}"


def test_what_goes_wrong_is_raised() -> None:
    def fetch(name: str, progress: Progress) -> None:
        raise PullFailed("no network", param="model")

    with pytest.raises(PullFailed, match="no network"):
        asyncio.run(told(pulls(fetch).lines(NAME)))


def test_two_clients_follow_one_pull_and_a_third_begins_another() -> None:
    fetched: list[str] = []

    async def play() -> None:
        go = threading.Event()

        def fetch(name: str, progress: Progress) -> None:
            fetched.append(name)
            progress(name, 1, 2)
            assert go.wait(60)

        shared = pulls(fetch)
        first, second = shared.lines(NAME), shared.lines(NAME)
        for lines in (first, second):
            await anext(lines)
            assert json.loads(await anext(lines))["completed"] == 1
        go.set()
        for lines in (first, second):
            assert (await told(lines))[-1] == {"status": "success"}
        await told(shared.lines(NAME))

    asyncio.run(play())
    assert fetched == [NAME, NAME]


def test_a_pull_that_nobody_waits_for_ends() -> None:
    ended = threading.Event()

    def fetch(name: str, progress: Progress) -> None:
        try:
            while not ended.wait(0.001):
                progress(name, 1, 2)
        finally:
            ended.set()

    async def play() -> None:
        shared = pulls(fetch)
        staying, leaving = shared.lines(NAME), shared.lines(NAME)
        for lines in (staying, leaving):
            await anext(lines)
            await anext(lines)
        await leaving.aclose()  # type: ignore[attr-defined]
        assert not ended.is_set()
        await staying.aclose()  # type: ignore[attr-defined]
        assert await asyncio.to_thread(ended.wait, 60)

    asyncio.run(play())


def test_a_pull_ends_with_the_server() -> None:
    def fetch(name: str, progress: Progress) -> None:
        while True:
            progress(name, 1, 2)

    with pytest.raises(ShuttingDown):
        asyncio.run(told(pulls(fetch, closing=lambda: True).lines(NAME)))
