"""Sends the requests of a load test and times every piece of their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli.load_test.workload import Planned

if TYPE_CHECKING:
    import aiohttp

DONE = b"[DONE]"


class Outcome(msgspec.Struct):
    """What came of one request. Times are seconds after the start of the test."""

    planned_s: float
    sent_s: float
    input_tokens: int = 0
    output_tokens: int = 0
    pieces_s: list[float] = []  # when each piece of output came
    ended_s: float = 0.0
    error: str | None = None  # such as "429 queue_full"; None: it was answered

    @property
    def ttft_s(self) -> float | None:
        return self.pieces_s[0] - self.sent_s if self.pieces_s else None

    @property
    def e2e_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first."""
        if len(self.pieces_s) < 2 or self.output_tokens < 2:
            return None
        return (self.pieces_s[-1] - self.pieces_s[0]) / (self.output_tokens - 1)


class Target(msgspec.Struct, kw_only=True):
    url: str
    model: str
    headers: dict[str, str]
    chat: bool
    timeout_s: float
    ignore_eos: bool  # a field of Penstock and vLLM: answers have the planned length


class LoadTest:
    """Outcomes grow while it runs, so that a test that was interrupted has those so far."""

    def __init__(self, target: Target, planned: list[Planned], concurrency: int | None) -> None:
        """Without `concurrency`, requests are sent at their times however many are open."""
        self._target = target
        self._planned = planned
        self._limit = asyncio.Semaphore(concurrency) if concurrency else None
        self._paced = concurrency is None
        self._begun = 0.0
        self.total = len(planned)
        self.open = 0
        self.outcomes: list[Outcome] = []
        self.seconds = 0.0

    async def run(self, on_change: Callable[[], None]) -> None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self._target.timeout_s)
        connector = aiohttp.TCPConnector(limit=0)
        self._begun = time.perf_counter()
        tasks: set[asyncio.Task[None]] = set()
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            try:
                for one in self._planned:
                    if self._limit is not None:
                        await self._limit.acquire()
                    elif (wait_s := one.at_s - self._now()) > 0:
                        await asyncio.sleep(wait_s)
                    task = asyncio.create_task(self._send(session, one))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    task.add_done_callback(lambda _: on_change())
                await asyncio.gather(*tasks)
            finally:  # interrupted: open requests are no errors of the server
                self.seconds = self._now()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _now(self) -> float:
        return time.perf_counter() - self._begun

    async def _send(self, session: aiohttp.ClientSession, one: Planned) -> None:
        self.open += 1
        outcome = Outcome(one.at_s if self._paced else self._now(), self._now())
        try:
            await self._stream(session, one, outcome)
        except asyncio.CancelledError:
            outcome.error = "interrupted"
            raise
        except TimeoutError:
            outcome.error = f"no answer within {self._target.timeout_s:.0f} s"
        except Exception as error:  # of the connection: aiohttp has many kinds
            outcome.error = type(error).__name__
        finally:
            self.open -= 1
            outcome.ended_s = self._now()
            if outcome.error != "interrupted":
                self.outcomes.append(outcome)
            if self._limit is not None:
                self._limit.release()

    async def _stream(self, session: aiohttp.ClientSession, one: Planned, outcome: Outcome) -> None:
        target = self._target
        path = "/v1/chat/completions" if target.chat else "/v1/completions"
        async with session.post(target.url + path, json=self._body(one), headers=target.headers) as answer:
            if answer.status != 200:
                outcome.error = f"{answer.status} {_code(await answer.read())}".strip()
                return
            async for line in answer.content:
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or not data:
                    continue
                if data == DONE:
                    break
                self._note(msgspec.json.decode(data), outcome)
        if outcome.error is None and not outcome.pieces_s:
            outcome.error = "empty answer"
        outcome.output_tokens = outcome.output_tokens or len(outcome.pieces_s)

    def _note(self, event: dict[str, Any], outcome: Outcome) -> None:
        if "error" in event:
            outcome.error = str(event["error"].get("code") or "error in the stream")
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
                outcome.pieces_s.append(self._now())
        if usage := event.get("usage"):
            outcome.input_tokens, outcome.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]

    def _body(self, one: Planned) -> dict[str, Any]:
        prompt = (
            {"messages": [{"role": "user", "content": one.prompt}]} if self._target.chat else {"prompt": one.prompt}
        )
        return {
            "model": self._target.model,
            **prompt,
            "max_tokens": one.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self._target.ignore_eos else {}),
        }


def _code(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["code"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
