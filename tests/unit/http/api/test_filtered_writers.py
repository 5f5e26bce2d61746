"""Every API's writer under safety rules, at every split of an answer with reasoning, text and a tool call: nothing of a
match is in what is sent or stored, and whole and streamed answers agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.flow import Chunk, Delta, FinishReason, OutputFormat, ReasoningMarkers, SamplingParams, Submit
from penstock.flow.messages import TokenLogprobs
from penstock.gateway.safety.choice_filter import Context, RuleFilter
from penstock.gateway.safety.rules import Rules
from penstock.http.api.anthropic.messages import MessageWriter
from penstock.http.api.ollama.writer import ChatLineWriter, GenerateLineWriter
from penstock.http.api.openai.chat import ChatWriter
from penstock.http.api.openai.completions import CompletionWriter
from penstock.http.api.openai.schemas import ChatCompletionRequest, CompletionRequest
from penstock.http.api.responses import requests
from penstock.http.api.responses.schemas import ResponseRequest
from penstock.http.api.responses.writer import ResponseWriter
from penstock.http.response_store import StoredResponse
from penstock.http.sse import frame_events
from penstock.http.streaming import Writer
from penstock.settings import SafetyEntry
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream
from penstock.tokenize import Tokenizer

MATCHER = Rules([SafetyEntry(name="words", terms=("secret plan",))]).of("", "output").matcher
FORMAT = OutputFormat(reasoning=ReasoningMarkers("<think>", "</think>"), tool_calls="hermes")
ANSWERS = (
    "so secret plan it",
    "<think>a secret plan</think>ok",
    "<think>ok</think>my secret plan",
    '<think>a</think>b<tool_call>{"name": "f", "arguments": {"x": "secret plan"}}</tool_call>',
    '<think>a</think>b<tool_call>{"name": "f", "arguments": {"x": "s\\u0065cret\\nplan"}}</tool_call>',
)
ASK = [{"role": "user", "content": "p"}]
LEAKS = ("ecret", "u0065", "plan")
Store = Callable[[str, StoredResponse], None]


def chat(vocabulary: Tokenizer, store: Store) -> Writer:
    body = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": ASK, "logprobs": True, "top_logprobs": 3, "store": True, "return_token_ids": True}
    )
    return ChatWriter(body, request_id="1", model="m", created=1, vocabulary=vocabulary, store=store)


def plain_chat(vocabulary: Tokenizer, store: Store) -> Writer:
    body = ChatCompletionRequest.model_validate({"model": "m", "messages": ASK})
    return ChatWriter(body, request_id="1", model="m", created=1, vocabulary=vocabulary)


def completion(vocabulary: Tokenizer, store: Store) -> Writer:
    body = CompletionRequest.model_validate({"model": "m", "prompt": "p", "logprobs": 3, "echo": False})
    return CompletionWriter(body, request_id="1", model="m", created=1, vocabulary=vocabulary)


def message(vocabulary: Tokenizer, store: Store) -> Writer:
    return MessageWriter(request_id="1", model="m")


def response(vocabulary: Tokenizer, store: Store) -> Writer:
    include = ["message.output_text.logprobs"]
    body = ResponseRequest.model_validate({"model": "m", "input": "p", "include": include, "top_logprobs": 3})
    turns = requests.conversation(body, [])
    return ResponseWriter(
        body, SamplingParams(), turns, request_id="1", model="m", vocabulary=vocabulary, store=store, clock=lambda: 1.0
    )


def ollama_chat(vocabulary: Tokenizer, store: Store) -> Writer:
    return ChatLineWriter(model="m", accepted=0.0, vocabulary=vocabulary)


def ollama_text(vocabulary: Tokenizer, store: Store) -> Writer:
    return GenerateLineWriter(model="m", accepted=0.0, vocabulary=vocabulary)


def answer(vocabulary: Tokenizer, pieces: list[str]) -> tuple[ActiveRequest, list[Chunk]]:
    params = SamplingParams(logprobs=3)
    active = ActiveRequest(
        "r",
        [Submit("r/0", [1], params, 0, 99)],
        lambda index: ChoiceStream(index, params, vocabulary.text_stream([]), FORMAT),
    )
    context = Context(token_bytes=vocabulary.token_bytes)
    active.filter_output(lambda: RuleFilter(MATCHER, None, lambda *hit: None, context))
    chunks = []
    for place, piece in enumerate(pieces):
        tokens = vocabulary.encode(piece, add_special=False)
        top = [(token, -1.0) for token in vocabulary.encode("nx", add_special=False)]
        logprobs = [TokenLogprobs(token, -1.0, 1, [(token, -1.0), *top]) for token in tokens]
        finish = FinishReason.LENGTH if place == len(pieces) - 1 else None
        chunk, _ = active.push(Delta(id="r/0", tokens=tokens, logprobs=logprobs, finish=finish))
        chunks += [] if chunk is None else [chunk]
    return active, chunks


def shown_bytes(data: bytes) -> str:
    """The text, and what lists of token bytes spell."""
    values = [json.loads(line.removeprefix("data: ")) for line in data.decode().splitlines() if "{" in line]
    spelled = "".join(bytes(one).decode(errors="replace") for value in values for one in byte_lists(value))
    return data.decode() + spelled


def byte_lists(value: Any) -> list[list[int]]:
    if isinstance(value, dict):
        own = [value["bytes"]] if isinstance(value.get("bytes"), list) else []
        return own + [one for each in value.values() for one in byte_lists(each)]
    return [one for each in value for one in byte_lists(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "make", [chat, plain_chat, completion, message, response, ollama_chat, ollama_text], ids=lambda make: make.__name__
)
def test_nothing_of_a_match_is_written(vocabulary: Tokenizer, make: Callable[[Tokenizer, Store], Writer]) -> None:
    for text in ANSWERS:
        splits = [[text[:cut], text[cut:]] for cut in range(1, len(text), 1 + len(text) // 30)]
        for pieces in [*splits, list(text), [text]]:
            kept: dict[str, StoredResponse] = {}
            active, chunks = answer(vocabulary, pieces)
            whole = [active.completion()]
            writer = make(vocabulary, kept.__setitem__)
            events = [*writer.first(0, 0, [1]), *(one for chunk in chunks for one in writer.chunk(0, chunk))]
            sent = [
                frame_events([*events, *writer.last(whole)]),
                make(vocabulary, kept.__setitem__).full_response(whole),
            ]
            for data in (*sent, *(part for one in kept.values() for part in (one.body, one.conversation, one.pieces))):
                assert not [leak for leak in LEAKS if leak in shown_bytes(data)], (pieces, data)
            assert whole[0].finish is FinishReason.CONTENT_FILTER
