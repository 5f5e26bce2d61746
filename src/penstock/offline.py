"""Penstock as a library: the same pipeline and engine as the server's, driven by a plain loop.

with LLM("smollm2") as llm:
    print(llm.generate("The capital of France is").text)
"""

from __future__ import annotations

import itertools
import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from penstock import assemble, settings
from penstock.bar import bar
from penstock.errors import EngineDied, InvalidRequest, PenstockError, by_code
from penstock.flow import (
    Chunk,
    Completion,
    Delta,
    Embedding,
    Engine,
    Frame,
    Message,
    Pooling,
    Query,
    Reply,
    Request,
    SamplingParams,
    ToolUse,
)
from penstock.pipeline import Flight
from penstock.store.progress import Progress

logger = logging.getLogger(__name__)

Prompt = str | list[int]
Prompts = list[str] | list[list[int]] | list[Prompt]
Conversation = list[Message]
Params = SamplingParams | Sequence[SamplingParams] | None
T = TypeVar("T")

MAX_OPEN = 4096  # sequences of batches that are with the engine at once


class LLM:
    """A model, loaded and ready. One prompt gives one result; a list gives a list in the same order.

    Settings are those of `penstock.settings` by their flat names: `LLM("smollm2", context=2048, isolate=True)`.
    Threads may share an LLM; they take turns.
    """

    def __init__(
        self, model: str | None = None, *, config: Path | None = None, pulling: Progress | None = None, **values: Any
    ) -> None:
        """`config` is a TOML file of settings; `pulling` is told how a download comes along."""
        self.settings = settings.load({"model": model, **values}, file=config)
        if ignored := settings.strays():
            logger.warning("%s", ignored)
        self.model = assemble.model(self.settings, pulling)
        self.pipeline = assemble.pipeline(self.settings, self.model)
        self.defaults: dict[str, Any] = dict(
            self.model.sampling
        )  # what its makers recommend: used where no params are given
        engine, self.facts = assemble.engine(self.settings)
        self._driver = _Driver(engine, min(MAX_OPEN, self.settings.schedule.max_waiting))
        self._numbers = itertools.count()

    @overload
    def generate(self, prompts: Prompt, params: Params = ..., *, progress: bool | None = ...) -> Completion: ...

    @overload
    def generate(self, prompts: Prompts, params: Params = ..., *, progress: bool | None = ...) -> list[Completion]: ...

    def generate(
        self, prompts: Prompt | Prompts, params: Params = None, *, progress: bool | None = None
    ) -> Completion | list[Completion]:
        """Continue plain texts or lists of token ids. A progress bar is shown on a terminal, or as `progress` says."""
        single = _is_single(prompts)
        batch: list[Any] = [prompts] if single else list(prompts)
        flights = self._accept(batch, params, lambda prompt: {_kind(prompt): prompt}, single)
        self._driver.run(flights, "generating", progress)
        results = [flight.completion() for flight in flights]
        return results[0] if single else results

    @overload
    def chat(
        self, messages: Conversation, params: Params = ..., *, progress: bool | None = ..., **options: Any
    ) -> Completion: ...

    @overload
    def chat(
        self, messages: list[Conversation], params: Params = ..., *, progress: bool | None = ..., **options: Any
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Conversation | list[Conversation],
        params: Params = None,
        *,
        progress: bool | None = None,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Answer conversations through the model's chat template.

        `options` are fields of flow.Request: continue_final_message, add_generation_prompt, template_arguments, salt,
        priority, reasoning_effort, and tools: a ToolUse, or a list of tools as OpenAI writes them.
        """
        if not isinstance(messages, list | tuple):
            raise InvalidRequest(f"messages is a list of messages, or of those, not {messages!r}", param="messages")
        single = len(messages) == 0 or isinstance(messages[0], dict)
        batch: list[Any] = [messages] if single else list(messages)
        flights = self._accept(batch, params, lambda turns: {"messages": turns, **options}, single)
        self._driver.run(flights, "generating", progress)
        results = [flight.completion() for flight in flights]
        return results[0] if single else results

    @overload
    def embed(self, texts: Prompt, *, pooling: Pooling = ..., progress: bool | None = ...) -> Embedding: ...

    @overload
    def embed(self, texts: Prompts, *, pooling: Pooling = ..., progress: bool | None = ...) -> list[Embedding]: ...

    def embed(
        self, texts: Prompt | Prompts, *, pooling: Pooling = "mean", progress: bool | None = None
    ) -> Embedding | list[Embedding]:
        """Vectors of unit length for texts or lists of token ids: the hidden states behind the final norm, their mean
        or the last one. Raises if the engine fails: there is no such thing as a part of a vector."""
        single = _is_single(texts)
        batch: list[Any] = [texts] if single else list(texts)

        def fields(text: Any) -> dict[str, Any]:
            kind = _plain_kind(text, "an input is a text or a list of token ids", "input")
            return {kind: text, "task": "embed", "pooling": pooling}

        flights = self._accept(batch, SamplingParams(), fields, single, "input")
        self._driver.run(flights, "embedding", progress)
        results = [_embedding(flight) for flight in flights]
        return results[0] if single else results

    def stream(
        self, prompt: Prompt | Conversation, params: SamplingParams | None = None, **options: Any
    ) -> Iterator[Chunk]:
        """The answer piece by piece. Leaving the loop early cancels the rest of it."""
        (flight,) = self._accept([prompt], params, lambda prompt: {_kind(prompt): prompt, **options}, True)
        return self._driver.chunks(flight)

    def stats(self) -> dict[str, Any]:
        """Sequences running and waiting, KV blocks free, cached and in use, and what was counted since the start."""
        return dict(self._driver.ask("stats"))

    def check_integrity(self) -> None:
        """Raises if the engine's books do not balance. For tests and the curious; costs a pass over all blocks."""
        self._driver.ask("check")

    def close(self) -> None:
        self.pipeline.close()
        self._driver.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(
        self,
        batch: Sequence[T],
        params: Params,
        fields: Callable[[T], dict[str, Any]],
        single: bool,
        noun: str = "prompt",
    ) -> list[Flight]:
        """All of them or none: a bad prompt in a batch is reported before any model time is spent."""
        flights = []
        for place, (prompt, one) in enumerate(zip(batch, self._spread(params, len(batch)), strict=True)):
            try:
                request = Request(id=str(next(self._numbers)), params=one, **_typed(fields(prompt)))
                flights.append(self.pipeline.accept(request))
            except InvalidRequest as error:
                if single:
                    raise
                raise type(error)(f"{noun} {place}: {error.message}", param=error.param) from None
        return flights

    def _spread(self, params: Params, count: int) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams(**self.defaults)] * count
        if len(params) != count:
            raise InvalidRequest(f"{count} prompts but {len(params)} SamplingParams", param="params")
        return params


class _Driver:
    """Carries messages between flights and the engine. One thread at a time turns the engine, for all of them."""

    def __init__(self, engine: Engine, max_open: int) -> None:
        """`max_open`: sequences that batches hand to the engine at once, so that it never has to refuse one."""
        self.engine = engine
        self.max_open = max_open
        self.lock = threading.Lock()
        self.landings: dict[str, _Landing] = {}  # by sequence id
        self.replies: dict[int, Reply] = {}
        self.numbers = itertools.count()

    def run(self, flights: list[Flight], doing: str, progress: bool | None) -> None:
        """Fly them all until they have landed, with a progress bar that says what they are `doing`."""
        waiting = deque(flights)
        landed: deque[_Landing] = deque()
        under_way: set[_Landing] = set()
        with bar(doing, len(flights), wanted=progress) as advance:
            try:
                while waiting or under_way:
                    while waiting and (not under_way or self._has_room(waiting[0])):
                        under_way.add(self.launch(_Landing(waiting.popleft(), landed=landed)))
                    self.wait(lambda: bool(landed))
                    while landed:
                        under_way.remove(landing := landed.popleft())
                        self.abandon(landing)
                        advance()
            finally:
                for landing in under_way:
                    self.abandon(landing)
        for message, code in (flight.error for flight in flights if flight.error):
            if code == EngineDied.code:
                raise EngineDied(message)

    def chunks(self, flight: Flight) -> Iterator[Chunk]:
        chunks: deque[Chunk] = deque()
        landing = self.launch(_Landing(flight, chunks=chunks))
        try:
            while not flight.done or chunks:
                self.wait(lambda: bool(chunks) or flight.done)
                while chunks:
                    yield chunks.popleft()
        finally:
            self.abandon(landing)
        if flight.error is not None:
            raise by_code(flight.error[1], flight.error[0])

    def ask(self, kind: str) -> Any:
        number = next(self.numbers)
        with self.lock:
            self.engine.query(Query(number, kind))
        self.wait(lambda: number in self.replies)
        reply = self.replies.pop(number)
        if reply.error is not None:
            raise PenstockError(reply.error)
        return reply.value

    def launch(self, landing: _Landing) -> _Landing:
        with self.lock:
            for submit in landing.flight.submits:
                self.landings[submit.id] = landing
                self.engine.submit(submit)
        return landing

    def abandon(self, landing: _Landing) -> None:
        """Nobody waits for it any more. The engine is told if it still works on it."""
        with self.lock:
            for cancel in landing.flight.cancels():
                self.engine.cancel(cancel)
            for submit in landing.flight.submits:
                self.landings.pop(submit.id, None)

    def wait(self, arrived: Callable[[], bool]) -> None:
        while not arrived():
            with self.lock:
                if not arrived():  # another thread may have brought it meanwhile
                    self._pump()

    def _has_room(self, flight: Flight) -> bool:
        return len(self.landings) + len(flight.submits) <= self.max_open

    def _pump(self) -> None:
        news = self.engine.receive()
        if not news:
            raise EngineDied("the engine has nothing to do, but a request is still open")
        for message in news:
            if isinstance(message, Frame):
                for delta in message.deltas:
                    if landing := self.landings.get(delta.id):
                        self._deliver(landing, delta)
            else:
                self.replies[message.id] = message

    def _deliver(self, landing: _Landing, delta: Delta) -> None:
        chunk, cancel = landing.flight.push(delta)
        if cancel is not None:
            self.engine.cancel(cancel)
        if chunk is not None and landing.chunks is not None:
            landing.chunks.append(chunk)
        if landing.flight.done and landing.landed is not None:
            landing.landed.append(landing)


@dataclass(eq=False, slots=True)
class _Landing:
    """A flight, and where its news go: each chunk, or itself once it is done."""

    flight: Flight
    chunks: deque[Chunk] | None = None
    landed: deque[_Landing] | None = None


def _embedding(flight: Flight) -> Embedding:
    packed = flight.embedding()
    return Embedding(list(struct.unpack(f"<{len(packed) // 4}f", packed)), len(flight.submits[0].tokens))


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    """Tools may be given in several ways."""
    return {**fields, "tools": ToolUse.of(fields["tools"])} if fields.get("tools") is not None else fields


def _is_single(prompts: Prompt | Prompts) -> bool:
    if not isinstance(prompts, Sequence):
        raise InvalidRequest(f"give a text, a list of token ids, or a list of those, not {prompts!r}", param="prompt")
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _kind(prompt: Any) -> str:
    """Which field of Request a prompt belongs in; raises on what is none."""
    if isinstance(prompt, list) and prompt and all(isinstance(message, dict) for message in prompt):
        return "messages"
    return _plain_kind(prompt, "a prompt is a text, a list of token ids or a list of messages", "prompt")


def _plain_kind(given: Any, expected: str, param: str) -> str:
    if isinstance(given, str):
        return "text"
    if isinstance(given, list) and {*map(type, given)} <= {int}:  # of thousands, so no loop of Python's
        return "tokens"
    raise InvalidRequest(expected, param=param)
