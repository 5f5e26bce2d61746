"""Rules that ask somebody else: an HTTP endpoint that answers as /v1/moderations does, or a Python function.

A hook has a time limit. When it fails (no answer in time, an error, an answer that makes no sense), its rule says what
that means: `closed`, as if it had flagged the text, or `open`, as if it had not.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from penstock.errors import InvalidSetting
from penstock.settings import SafetyEntry

logger = logging.getLogger(__name__)

MAX_THREADS = 8  # of functions that are not coroutines, for each hook
Post = Callable[[str, dict[str, str], bytes], Awaitable[bytes]]  # URL, headers, body: the body of a 200


class Verdict(NamedTuple):
    flagged: bool
    failure: str | None = None  # why the hook gave no verdict of its own
    categories: tuple[str, ...] = ()  # that the endpoint named


class _Result(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool | None] = {}


class _Answer(msgspec.Struct):
    results: list[_Result]


class Hook:
    """Of one rule. `ask` gives a verdict or raises."""

    def __init__(self, rule: str, ask: Callable[[str], Awaitable[Verdict]], *, timeout_s: float, is_open: bool) -> None:
        self.rule = rule
        self.failures: Counter[str] = Counter()  # by kind: timeout, error
        self._ask = ask
        self._timeout_s = timeout_s
        self._is_open = is_open

    async def check(self, text: str) -> Verdict:
        """Never raises, except when it is cancelled."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(text)
        except TimeoutError:
            return self._failed("timeout", f"no answer within {self._timeout_s:g} s")
        except Exception as error:
            return self._failed("error", f"{type(error).__name__}: {str(error)[:200]}")

    def _failed(self, kind: str, why: str) -> Verdict:
        if not self.failures[kind]:  # once: it may go on for hours
            outcome = "let through" if self._is_open else "treated as hits"
            logger.warning("safety (%s): the hook failed, texts are %s: %s", self.rule, outcome, why)
        self.failures[kind] += 1
        return Verdict(not self._is_open, why)


def make_hook(entry: SafetyEntry, post: Post, environ: dict[str, str]) -> Hook:
    """Raises InvalidSetting for a hook that is not there."""
    assert entry.hook is not None
    is_url = entry.hook.startswith(("http://", "https://"))
    ask = _http(entry, post, environ) if is_url else _python(entry)
    return Hook(entry.name, ask, timeout_s=entry.timeout_s, is_open=entry.on_failure == "open")


def _http(entry: SafetyEntry, post: Post, environ: dict[str, str]) -> Callable[[str], Awaitable[Verdict]]:
    url, headers = entry.hook or "", {"content-type": "application/json"}
    if entry.hook_key_env is not None:
        key = environ.get(entry.hook_key_env)
        if not key:
            raise InvalidSetting(
                f"safety ({entry.name}): hook_key_env: the environment has no {entry.hook_key_env}",
                param="hook_key_env",
            )
        headers["authorization"] = f"Bearer {key}"

    async def ask(text: str) -> Verdict:
        answer = await post(url, headers, msgspec.json.encode({"input": text.encode(errors="replace").decode()}))
        results = msgspec.json.decode(answer, type=_Answer).results
        if not results:
            raise ValueError("the answer has no results")
        found = [name for result in results for name, flagged in result.categories.items() if flagged]
        return Verdict(any(result.flagged for result in results), categories=tuple(found))

    return ask


def _python(entry: SafetyEntry) -> Callable[[str], Awaitable[Verdict]]:
    """A function of a text, or a coroutine function, that returns whether it is flagged."""
    module, colon, name = (entry.hook or "").partition(":")
    try:
        if not colon:
            raise ValueError("it is neither a URL nor module:function")
        function: Any = getattr(importlib.import_module(module), name)
        if not callable(function):
            raise TypeError(f"{name} is no function")
    except Exception as error:  # whatever the module raises
        raise InvalidSetting(f"safety ({entry.name}): hook: {type(error).__name__}: {error}", param="hook") from None
    slots = asyncio.Semaphore(MAX_THREADS)

    async def ask(text: str) -> Verdict:
        if inspect.iscoroutinefunction(function):
            flagged = await function(text)
        else:
            async with slots:
                flagged = await asyncio.to_thread(function, text)
        if not isinstance(flagged, bool):
            raise TypeError(f"the function returned {type(flagged).__name__} instead of a bool")
        return Verdict(flagged)

    return ask
