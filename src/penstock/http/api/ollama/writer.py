"""Answers to chat and generate, whole or as a stream of lines: JSON objects, of which the last has the counts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock.flow import CallDelta, Chunk, Completion, FinishReason, TokenLogprobs, ToolCall
from penstock.http.api.fields import read_arguments
from penstock.http.api.logprobs import (
    TokenLogprob,
    Vocabulary,
    token_logprob,
)
from penstock.http.api.ollama.response_bodies import (
    DoneReason,
    OllamaCalledFunction,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaReply,
    OllamaToolCall,
)
from penstock.http.error_body import RenderedError
from penstock.http.sse import Event, JsonLine

_DONE: dict[FinishReason, DoneReason] = {
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.DEAD_END: "dead_end",
}
# Their last token ended the answer; it is not part of it.
_BY_TOKEN = (FinishReason.END, FinishReason.STOP_TOKEN)

_encode = msgspec.json.Encoder().encode


class LineWriter(ABC):
    """Writes the answer to one request, as JSON texts. A stream is the chunks as they come, then `last`."""

    end: Sequence[Event] = ()

    def __init__(self, *, model: str, accepted: float, vocabulary: Vocabulary) -> None:
        """`model` as the client calls it; `accepted` is when the request came, as time.monotonic() has it."""
        self._model = model
        self._accepted = accepted
        self._vocabulary = vocabulary
        self._pieces: list[CallDelta] = []  # of the call that is not yet whole
        self._called = 0  # calls of a stream that have been whole

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[Event]:
        return []

    def chunk(self, prompt: int, chunk: Chunk) -> list[Event]:
        """Nothing if there is nothing to show yet: a call is shown once it is whole."""
        calls = self._whole_calls(chunk)
        logprobs = self._logprobs(chunk.logprobs, chunk.finish)
        if not (chunk.text or chunk.reasoning or calls or logprobs):
            return []
        return [JsonLine(_encode(self._line(chunk.text, chunk.reasoning, calls, logprobs=logprobs, done=False)))]

    def last(self, completions: Sequence[Completion]) -> list[Event]:
        (completion,) = completions
        return [JsonLine(_encode(self._line("", "", [], done=True, **self._counts(completion))))]

    def text_event(self, prompt: int, choice: int) -> None:
        return None

    def failed(self, told: RenderedError) -> list[Event]:
        return [JsonLine(told.body)]

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The answer in one piece, of a completion that did not fail."""
        (completion,) = completions
        (choice,) = completion.choices
        return _encode(
            self._line(
                choice.text,
                choice.reasoning or "",
                _written(choice.calls),
                logprobs=self._logprobs(choice.logprobs, choice.finish),
                done=True,
                **self._counts(completion),
            )
        )

    def loaded(self) -> bytes:
        """The answer to a request that only wants the model loaded."""
        return _encode(self._line("", "", [], done=True, done_reason="load"))

    def _line(self, text: str, thinking: str, calls: list[OllamaToolCall], **more: Any) -> msgspec.Struct:
        return self._answer(text, thinking, calls, model=self._model, created_at=datetime.now(UTC), **more)

    @abstractmethod
    def _answer(self, text: str, thinking: str, calls: list[OllamaToolCall], **more: Any) -> msgspec.Struct: ...

    def _whole_calls(self, chunk: Chunk) -> list[OllamaToolCall]:
        """Those that this chunk completes: a call is whole when the next begins, or the answer ends."""
        whole: list[ToolCall] = []
        for piece in chunk.calls:
            if piece.id is not None:
                whole += self._taken()
            self._pieces.append(piece)
        if chunk.finish is not None:
            whole += self._taken()
        self._called += len(whole)
        return _written(whole, self._called - len(whole))

    def _taken(self) -> list[ToolCall]:
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return []
        arguments = "".join(piece.arguments for piece in pieces)
        return [ToolCall(id=pieces[0].id or "", name=pieces[0].name or "", arguments=arguments)]

    def _logprobs(
        self, entries: list[TokenLogprobs] | None, finish: FinishReason | None
    ) -> list[TokenLogprob] | UnsetType:
        shown = entries[:-1] if entries and finish in _BY_TOKEN else entries
        return UNSET if shown is None else [token_logprob(entry, self._vocabulary) for entry in shown]

    def _counts(self, completion: Completion) -> dict[str, Any]:
        (choice,) = completion.choices
        timings = choice.timings
        return {
            "done_reason": _DONE.get(choice.finish, "stop"),
            "total_duration": nanoseconds(time.monotonic() - self._accepted),
            "load_duration": 0,  # it is loaded
            "prompt_eval_count": len(completion.prompt_tokens),
            "prompt_eval_duration": nanoseconds(timings.prefill_s if timings is not None else None),
            "eval_count": len(choice.tokens),
            "eval_duration": nanoseconds(timings.decode_s if timings is not None else None),
        }


class ChatLineWriter(LineWriter):
    def _answer(self, text: str, thinking: str, calls: list[OllamaToolCall], **more: Any) -> OllamaChatAnswer:
        message = OllamaReply(content=text, thinking=thinking or UNSET, tool_calls=calls or UNSET)
        return OllamaChatAnswer(message=message, **more)


class GenerateLineWriter(LineWriter):
    def _answer(self, text: str, thinking: str, calls: list[OllamaToolCall], **more: Any) -> OllamaGenerateAnswer:
        return OllamaGenerateAnswer(response=text, thinking=thinking or UNSET, **more)


def nanoseconds(seconds: float | None) -> int:
    """At least 1: clients divide by it."""
    return max(1, round((seconds or 0.0) * 1e9))


def _written(calls: Sequence[ToolCall], first: int = 0) -> list[OllamaToolCall]:
    """Without one that the length limit cut short: half of an object is not JSON, and nobody should act on it."""
    return [
        OllamaToolCall(
            id=call.id,
            function=OllamaCalledFunction(index=index, name=call.name, arguments=msgspec.Raw(call.arguments.encode())),
        )
        for index, call in enumerate(calls, first)
        if read_arguments(call.arguments) is not None
    ]
