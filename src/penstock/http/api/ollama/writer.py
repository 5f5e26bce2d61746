"""Responses to chat and generate, whole or as a stream of JSON lines, the last of which has the counts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock.flow import CallDelta, Chunk, Completion, FinishReason, TokenLogprobs, ToolCall
from penstock.flow.protocols import Vocabulary
from penstock.http.api.fields import read_arguments
from penstock.http.api.logprobs import TokenLogprob, token_logprob
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
    FinishReason.CONTENT_FILTER: "content_filter",
    FinishReason.DEAD_END: "dead_end",
}
# The last token ended the output and is not part of it.
_BY_TOKEN = (FinishReason.END, FinishReason.STOP_TOKEN)

_encode = msgspec.json.Encoder().encode


class LineWriter(ABC):
    """Writes the response to one request as JSON lines. A stream is `chunk` for each chunk, then `last`."""

    end: Sequence[Event] = ()

    def __init__(self, *, model: str, accepted: float, vocabulary: Vocabulary) -> None:
        """`model` is the client's name of it, `accepted` the time.monotonic() of the request's arrival."""
        self._model = model
        self._accepted = accepted
        self._vocabulary = vocabulary
        self._pieces: list[CallDelta] = []  # of the tool call that is not complete
        self._num_calls = 0  # complete calls of a stream

    def answer_as(self, model: str, vocabulary: Vocabulary) -> None:
        self._model, self._vocabulary = model, vocabulary

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[Event]:
        return []

    def chunk(self, prompt: int, chunk: Chunk) -> list[Event]:
        """Empty if there is nothing to show yet: a tool call is sent once it is complete."""
        calls = self._complete_calls(chunk)
        logprobs = self._logprobs(chunk.logprobs, chunk.finish)
        if not (chunk.text or chunk.reasoning or calls or logprobs):
            return []
        return [JsonLine(_encode(self._line(chunk.text, chunk.reasoning, calls, logprobs=logprobs, done=False)))]

    def last(self, completions: Sequence[Completion]) -> list[Event]:
        (completion,) = completions
        return [JsonLine(_encode(self._line("", "", [], done=True, **self._counts(completion))))]

    def text_event(self, prompt: int, choice: int) -> None:
        return None

    def error_events(self, error: RenderedError) -> list[Event]:
        return [JsonLine(error.body)]

    def full_response(self, completions: Sequence[Completion]) -> bytes:
        """The whole response, of a completion that did not fail."""
        (completion,) = completions
        (choice,) = completion.choices
        return _encode(
            self._line(
                choice.text,
                choice.reasoning or "",
                _tool_calls(choice.calls),
                logprobs=self._logprobs(choice.logprobs, choice.finish),
                done=True,
                **self._counts(completion),
            )
        )

    def loaded(self, *, unloaded: bool = False) -> bytes:
        """The response to a request that only asks to load or unload the model."""
        return _encode(self._line("", "", [], done=True, done_reason="unload" if unloaded else "load"))

    def _line(self, text: str, thinking: str, calls: list[OllamaToolCall], **more: Any) -> msgspec.Struct:
        return self._answer(text, thinking, calls, model=self._model, created_at=datetime.now(UTC), **more)

    @abstractmethod
    def _answer(self, text: str, thinking: str, calls: list[OllamaToolCall], **more: Any) -> msgspec.Struct: ...

    def _complete_calls(self, chunk: Chunk) -> list[OllamaToolCall]:
        """The calls that this chunk completes: a call is complete when the next starts, or the output ends."""
        complete: list[ToolCall] = []
        for piece in chunk.calls:
            if piece.id is not None:
                complete += self._take_call()
            self._pieces.append(piece)
        if chunk.finish is not None:
            complete += self._take_call()
        self._num_calls += len(complete)
        return _tool_calls(complete, self._num_calls - len(complete))

    def _take_call(self) -> list[ToolCall]:
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
            "eval_count": choice.output_tokens,
            "eval_duration": nanoseconds(timings.decode_s if timings is not None else None),
            "cost_usd": UNSET if completion.cost_usd is None else completion.cost_usd,
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


def _tool_calls(calls: Sequence[ToolCall], first: int = 0) -> list[OllamaToolCall]:
    """Without a call that max_tokens cut short: part of an object is not JSON, and clients must not act on it."""
    return [
        OllamaToolCall(
            id=call.id,
            function=OllamaCalledFunction(index=index, name=call.name, arguments=msgspec.Raw(call.arguments.encode())),
        )
        for index, call in enumerate(calls, first)
        if read_arguments(call.arguments) is not None
    ]
