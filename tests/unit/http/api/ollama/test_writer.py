from __future__ import annotations

import json
from typing import Any

import pytest
from ollama import ChatResponse, GenerateResponse

from helpers.openai_samples import choice, completion, logprob
from helpers.schema_tables import assert_matches_schema
from penstock.flow import CallDelta, Chunk, FinishReason, ToolCall
from penstock.http.api.ollama.error_body import render_error
from penstock.http.api.ollama.response_bodies import OllamaChatAnswer, OllamaGenerateAnswer
from penstock.http.api.ollama.writer import ChatLineWriter, GenerateLineWriter, LineWriter, nanoseconds
from penstock.http.sse import Event, JsonLine, frame_events

PROMPT = [7, 8, 9]
COUNTS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}


class Letters:
    """Token ids are characters."""

    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode()


def writer(kind: type[LineWriter] = ChatLineWriter) -> LineWriter:
    return kind(model="tiny", accepted=0.0, vocabulary=Letters())  # type: ignore[arg-type]


def lines(events: list[Event]) -> list[dict[str, Any]]:
    """What is sent: as the SDK expects it, and as /openapi.json says."""
    assert all(isinstance(event, JsonLine) for event in events)
    sent = [json.loads(line) for line in frame_events(events).splitlines()]
    assert len(sent) == len(events)
    for data in sent:
        if "message" in data:
            ChatResponse(**data)
            assert_matches_schema(OllamaChatAnswer, data)
        else:
            GenerateResponse(**data)
            assert_matches_schema(OllamaGenerateAnswer, data)
    return sent


def streamed(write: LineWriter, *chunks: Chunk, **finished: Any) -> list[dict[str, Any]]:
    end = completion(PROMPT, choice(0, "".join(chunk.text for chunk in chunks), [1, 2], **finished))
    events = [*write.first(0, 0, PROMPT, 3), *[event for one in chunks for event in write.chunk(0, one)]]
    return lines([*events, *write.last([end])])


def full_response(write: LineWriter, **finished: Any) -> dict[str, Any]:
    text = finished.pop("text", "")
    (data,) = lines([JsonLine(write.full_response([completion(PROMPT, choice(0, text, [1, 2], **finished))]))])
    return data


def test_a_chat_is_streamed_in_lines() -> None:
    first, second, end = streamed(
        writer(), Chunk(0, "He", [1]), Chunk(0, "", [2]), Chunk(0, "y", [3], None, FinishReason.LENGTH)
    )
    assert [line["message"] for line in (first, second, end)] == [
        {"role": "assistant", "content": text} for text in ("He", "y", "")
    ]
    assert [line["done"] for line in (first, second, end)] == [False, False, True]
    assert not COUNTS & set(first)
    assert set(end) > COUNTS


def test_a_prompt_is_answered_in_lines() -> None:
    thought, said, end = streamed(
        writer(GenerateLineWriter), Chunk(0, "", [1], reasoning="hm"), Chunk(0, "Hey", [2], None, FinishReason.END)
    )
    assert (thought["thinking"], thought["response"]) == ("hm", "")
    assert (said["response"], end["response"]) == ("Hey", "")
    assert "thinking" not in said


def test_thoughts_of_a_chat() -> None:
    thought, _ = streamed(writer(), Chunk(0, "", [1], reasoning="hm"))
    assert thought["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert full_response(writer(), text="a", reasoning="hm")["message"]["thinking"] == "hm"


def test_the_counts() -> None:
    data = full_response(writer(), text="Hey")
    assert (data["message"]["content"], data["done"], data["model"]) == ("Hey", True, "tiny")
    assert (data["prompt_eval_count"], data["eval_count"], data["load_duration"]) == (3, 2, 0)
    assert (data["prompt_eval_duration"], data["eval_duration"]) == (500_000_000, 2_000_000_000)
    assert data["total_duration"] > 0


def test_clients_may_divide_by_durations() -> None:
    assert (nanoseconds(None), nanoseconds(0.0), nanoseconds(1.5)) == (1, 1, 1_500_000_000)


@pytest.mark.parametrize(
    ("finish", "wanted"),
    [
        (FinishReason.END, "stop"),
        (FinishReason.STOP_STRING, "stop"),
        (FinishReason.COMPLETE, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CONTEXT, "length"),
        (FinishReason.DEAD_END, "dead_end"),
    ],
)
def test_why_it_is_done(finish: FinishReason, wanted: str) -> None:
    assert full_response(writer(), finish=finish)["done_reason"] == wanted


def test_calls_come_whole_with_objects_for_arguments() -> None:
    pieces = [
        CallDelta(index=0, id="a", name="f"),
        CallDelta(index=0, arguments='{"n": '),
        CallDelta(index=0, arguments="1}"),
        CallDelta(index=1, id="b", name="g", arguments="{}"),
    ]
    chunks = [Chunk(0, "", [n], calls=(piece,)) for n, piece in enumerate(pieces)]
    first, second, end = streamed(writer(), *chunks, Chunk(0, "", [9], None, FinishReason.END))
    assert first["message"]["tool_calls"] == [{"id": "a", "function": {"index": 0, "name": "f", "arguments": {"n": 1}}}]
    assert second["message"]["tool_calls"] == [{"id": "b", "function": {"index": 1, "name": "g", "arguments": {}}}]
    assert "tool_calls" not in end["message"]
    calls = (ToolCall(id="a", name="f", arguments='{"n": 1}'), ToolCall(id="b", name="g", arguments="{}"))
    both = full_response(writer(), finish=FinishReason.END, calls=calls)
    assert both["message"]["tool_calls"] == first["message"]["tool_calls"] + second["message"]["tool_calls"]
    assert both["done_reason"] == "stop"


def test_half_a_call_is_not_shown() -> None:
    cut = CallDelta(index=0, id="a", name="f", arguments='{"n": ')
    (end,) = streamed(writer(), Chunk(0, "", [1], None, FinishReason.LENGTH, calls=(cut,)))
    assert end["done_reason"] == "length"
    assert (
        "tool_calls" not in full_response(writer(), calls=(ToolCall(id="a", name="f", arguments='{"n": '),))["message"]
    )


def test_log_probabilities_go_with_their_tokens() -> None:
    first, last, end = streamed(
        writer(),
        Chunk(0, "", [65], [logprob(65, -0.5, [(65, -0.5), (66, -1.0)])]),  # even of what shows nothing yet
        Chunk(0, "AB", [66, 1], [logprob(66), logprob(1)], FinishReason.END),
    )
    assert first["logprobs"] == [
        {
            "token": "A", "logprob": -0.5, "bytes": [65],
            "top_logprobs": [
                {"token": "A", "logprob": -0.5, "bytes": [65]}, {"token": "B", "logprob": -1.0, "bytes": [66]},
            ],
        }
    ]  # fmt: skip
    assert [entry["token"] for entry in last["logprobs"]] == ["B"]  # without the one that ended it
    assert "logprobs" not in end
    entries = [logprob(66), logprob(1)]
    assert len(full_response(writer(), logprobs=entries, finish=FinishReason.END)["logprobs"]) == 1
    assert "logprobs" not in full_response(writer())


def test_a_request_that_wants_the_model_loaded() -> None:
    (chat,) = lines([JsonLine(writer().loaded())])
    assert (chat["done"], chat["done_reason"], chat["message"]["content"]) == (True, "load", "")
    (generated,) = lines([JsonLine(writer(GenerateLineWriter).loaded())])
    assert (generated["done_reason"], generated["response"]) == ("load", "")


def test_a_stream_that_breaks_off() -> None:
    assert frame_events(writer().error_events(render_error(KeyError("secret"), "req-1"))) == (
        b'{"error":"internal error; the server\'s log says more about request req-1"}\n'
    )
