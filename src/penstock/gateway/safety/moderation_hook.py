"""Rules that ask somebody else: an HTTP endpoint that answers as /v1/moderations does, or a Python function.

A hook has a time limit. When it fails (no answer in time, an error, an answer that makes no sense), its rule says what
that means: `closed`, as if it had flagged the text, or `open`, as if it had not.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from penstock.errors import InvalidSetting
from penstock.settings import SafetyEntry
from penstock.system import typed

logger = logging.getLogger(__name__)

MAX_THREADS = 8  # of functions that are not coroutines, for each hook
Post = Callable[[str, dict[str, str], bytes], Awaitable[bytes]]  # URL, headers, body: the body of a 200


class Verdict(NamedTuple):
    flagged: bool
    failure: str | None = None  # why the hook gave no verdict of its own
    categories: tuple[str, ...] = ()  # that the endpoint named


class HookError(Exception):
    """A hook gave no verdict. The message has nothing of the text."""


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
        except HookError as error:
            return self._failed("error", str(error))
        except Exception as error:  # of the HTTP client, or of an answer that cannot be read
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
        results = typed.decode_json(answer, _Answer).results
        if not results:
            raise HookError("the answer has no results")
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
    except Exception as error:  # an import runs the hook's own code
        raise InvalidSetting(f"safety ({entry.name}): hook: {type(error).__name__}: {error}", param="hook") from None
    slots = asyncio.Semaphore(MAX_THREADS)

    async def ask(text: str) -> Verdict:
        if inspect.iscoroutinefunction(function):
            flagged = await _outcome(function(text))
        else:
            flagged = await _call_in_thread(function, text, slots)
        if isinstance(flagged, BaseException):  # its message may have the text in it
            raise HookError(f"the function raised {type(flagged).__name__}")
        if not isinstance(flagged, bool):
            raise HookError(f"the function returned {type(flagged).__name__} instead of a bool")
        return Verdict(flagged)

    return ask


async def _outcome(work: Awaitable[Any]) -> Any:
    """What it returns or raises. A cancellation goes on, unless it is the hook's own."""
    try:
        return await work
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        return error
    except BaseException as error:  # SystemExit as well: a hook does not end the server
        return error


async def _call_in_thread(function: Callable[[str], Any], text: str, slots: asyncio.Semaphore) -> Any:
    """What the function returns or raises. Its thread keeps the slot until the function returns, also past the time
    limit; the server does not wait for it at its end."""
    await slots.acquire()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def deliver(outcome: Any) -> None:
        slots.release()
        if not future.done():
            future.set_result(outcome)

    def call() -> None:
        try:
            outcome = function(text)
        except BaseException as error:
            outcome = error
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(deliver, outcome)

    threading.Thread(target=call, name="moderation-hook", daemon=True).start()
    return await future
