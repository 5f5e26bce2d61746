from __future__ import annotations

import codecs
import json
from typing import Any

import pytest
from openai.types.responses import Response as SdkResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from helpers.openai_samples import choice, completion
from helpers.schema_tables import assert_matches_schema
from penstock.deployment.protocol import PromptCount
from penstock.flow import CallDelta, Chunk, FinishReason, SamplingParams, TokenLogprobs, ToolCall
from penstock.http.api.responses import requests, response_bodies, writer
from penstock.http.api.responses.event_sequence import replay_events
from penstock.http.api.responses.writer import ResponseWriter
from penstock.http.error_body import RenderedError
from penstock.http.parse.schema import parse
from penstock.http.response_store import StoredResponse
from penstock.http.sse import Event, NamedEvent

PROMPT = [5, 6, 7, 8]
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
EVENTS = {str(kind.__struct_config__.tag): kind for kind in writer.EVENTS}


class Bytes:
    """A token is a byte; 124, which is |, is one of control."""

    special_ids = (124,)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def text_stream(self, prompt: list[int]) -> Any:
        return BytesDecoder()


class BytesDecoder:
    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    fixed_texts = None
    holds_text = False

    def push(self, token: int) -> str:
        return "" if token in Bytes.special_ids else self.decoder.decode(bytes([token]))

    def flush(self) -> str:
        return self.decoder.decode(b"", final=True)


def make(kept: dict[str, StoredResponse] | None = None, **fields: Any) -> ResponseWriter:
    body = parse(writer.REQUEST, json.dumps({"model": "m", "input": "Hi", **fields}).encode())
    vocabulary: Any = Bytes()
    params = SamplingParams(
        temperature=0.5, max_tokens=body.max_output_tokens, logprobs=body.top_logprobs if body.with_logprobs else None
    )
    return ResponseWriter(
        body, params, requests.conversation(body, []), request_id="1", model="tiny", vocabulary=vocabulary,
        store=None if kept is None else kept.__setitem__, items=b"[7]", clock=lambda: 1_700_000_000.9,
    )  # fmt: skip


def checked(data: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(data)
    SdkResponse.model_validate(body)
    assert_matches_schema(response_bodies.Response, body)
    return body


def full_response(write: ResponseWriter, text: str = "", **finished: Any) -> dict[str, Any]:
    return checked(write.full_response([completion(PROMPT, choice(0, text, [1, 2], **finished), cached_tokens=3)]))


def told(events: list[Event]) -> list[dict[str, Any]]:
    """What is sent: numbered, named as it says, as the SDK expects it, and as /openapi.json says."""
    sent = []
    for number, event in enumerate(events):
        assert isinstance(event, NamedEvent)
        data = json.loads(event.data)
        assert (data["type"], data["sequence_number"]) == (event.name, number)
        assert_matches_schema(EVENTS[event.name], data)
        SDK_EVENT.validate_python(data)
        sent.append(data)
    return sent


def streamed(write: ResponseWriter, *chunks: Chunk, **finished: Any) -> list[dict[str, Any]]:
    text = "".join(chunk.text for chunk in chunks)
    end = completion(PROMPT, choice(0, text, [1, 2], **finished), cached_tokens=3)
    events = [*write.first(0, 0, PROMPT, 3), *[event for one in chunks for event in write.chunk(0, one)]]
    return told([*events, *write.last([end])])


CALLS = (ToolCall(id="c1", name="f", arguments='{"a": 1}'), ToolCall(id="c2", name="g", arguments="{}"))
PIECES = (
    Chunk(0, "", [1], reasoning="h"),
    Chunk(0, "So", [2], reasoning="m"),
    Chunk(0, ".", [3], calls=(CallDelta(index=0, id="c1", name="f"), CallDelta(index=0, arguments='{"a"'))),
    Chunk(0, "", [4], calls=(CallDelta(index=0, arguments=": 1}"),)),
    Chunk(0, "", [5], calls=(CallDelta(index=1, id="c2", name="g", arguments="{}"),)),
)


def test_a_whole_answer() -> None:
    body = full_response(
        make(instructions="Be brief.", metadata={"a": "b"}, user="me"), "Hello", finish=FinishReason.END
    )

    assert body == {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "completed_at": 1_700_000_000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "max_output_tokens": None,
        "model": "tiny",
        "output": [
            {
                "type": "message",
                "id": "msg_1_0",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 4,
            "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 6,
        },
        "user": "me",
        "safety_identifier": None,
        "prompt_cache_key": None,
        "metadata": {"a": "b"},
        "background": False,
        "service_tier": "default",
        "max_tool_calls": None,
    }


def test_what_was_asked_for_comes_back() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": None}
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    body = full_response(
        make(
            tools=[tool], tool_choice={"type": "function", "name": "f"}, text={"format": form},
            reasoning={"effort": "low"}, max_output_tokens=9, parallel_tool_calls=False,
        ),
        finish=FinishReason.LENGTH,
    )  # fmt: skip

    assert body["tools"] == [tool]
    assert body["tool_choice"] == {"type": "function", "name": "f"}
    assert body["text"] == {"format": {**form, "description": None}}
    assert body["reasoning"]["effort"] == "low"
    assert (body["max_output_tokens"], body["parallel_tool_calls"]) == (9, False)


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        (FinishReason.END, "completed", None),
        (FinishReason.COMPLETE, "completed", None),
        (FinishReason.LENGTH, "incomplete", "max_output_tokens"),
        (FinishReason.CONTEXT, "incomplete", "max_output_tokens"),
    ],
)
def test_why_it_ended(finish: FinishReason, status: str, reason: str | None) -> None:
    body = full_response(make(), "a", finish=finish)

    assert (body["status"], body["output"][0]["status"]) == (status, status)
    assert body["incomplete_details"] == (None if reason is None else {"reason": reason})
    events = streamed(make(), Chunk(0, "a", [1]), finish=finish)
    assert events[-1]["type"] == f"response.{status}"


def test_a_stream_of_text() -> None:
    events = streamed(make(), Chunk(0, "He", [1]), Chunk(0, "", [2]), Chunk(0, "llo", [3]), finish=FinishReason.END)

    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["delta"] for event in events[4:6]] == ["He", "llo"]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[2]["item"]["content"] == []
    assert events[6]["text"] == events[7]["part"]["text"] == "Hello"
    assert {event["item_id"] for event in events if "item_id" in event} == {"msg_1_0"}


def test_a_stream_leads_to_the_same_as_the_whole() -> None:
    finished: dict[str, Any] = {"finish": FinishReason.END, "reasoning": "hm", "calls": CALLS, "reasoning_tokens": 2}
    events = streamed(make(), *PIECES, **finished)
    body = full_response(make(), "So.", **finished)

    assert events[-1]["response"] == body
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == body["output"]
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert body["output"][2] == {
        "type": "function_call", "id": "fc_1_2", "call_id": "c1", "name": "f", "arguments": '{"a": 1}',
        "status": "completed",
    }  # fmt: skip
    deltas: dict[str, str] = {}
    for event in events:
        if "delta" in event:
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
            assert body["output"][event["output_index"]]["id"] == event["item_id"]
    assert list(deltas.values()) == ["hm", "So.", '{"a": 1}', "{}"]


def test_an_answer_that_says_nothing() -> None:
    assert full_response(make(), finish=FinishReason.END)["output"] == []


def test_a_stream_that_breaks_off() -> None:
    write = make()
    events = [*write.first(0, 0, PROMPT), *write.chunk(0, Chunk(0, "He", [1]))]
    sent = told([*events, *write.error_events(RenderedError(503, b"{}", "the engine died"))])

    assert [event["type"] for event in sent[-2:]] == ["response.output_item.done", "response.failed"]
    response = sent[-1]["response"]
    assert (response["status"], response["error"]) == (
        "failed",
        {"code": "server_error", "message": "the engine died"},
    )
    assert response["output"][0]["content"][0]["text"] == "He"


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_kept(stream: bool) -> None:
    kept: dict[str, StoredResponse] = {}
    cut = ToolCall(id="c3", name="h", arguments='{"a"')
    finished: dict[str, Any] = {"finish": FinishReason.END, "reasoning": "hm", "calls": (*CALLS, cut)}
    if stream:
        body = streamed(make(kept, instructions="x"), *PIECES, **finished)[-1]["response"]
    else:
        body = full_response(make(kept, instructions="x"), "So.", **finished)

    found = kept["resp_1"]
    assert body["store"] is True
    assert json.loads(found.body) == body
    assert found.items == b"[7]"
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}},
        {"id": "c3", "type": "function", "function": {"name": "h", "arguments": '{"a"'}},  # cut short: as it is
    ]
    assert found.messages() == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "So.", "reasoning_content": "hm", "tool_calls": calls},
    ]


def test_what_breaks_off_is_not_kept() -> None:
    kept: dict[str, StoredResponse] = {}
    write = make(kept)
    write.first(0, 0, PROMPT)
    write.error_events(RenderedError(503, b"{}", "gone"))

    assert kept == {}


def test_deleted() -> None:
    assert json.loads(writer.encode_deleted("resp_1")) == {"id": "resp_1", "object": "response", "deleted": True}


# As of the specification of 2026-04-24 (schema/components/schemas/ResponseResource.json, `required`).
OPEN_RESPONSES = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id",
    "instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p",
    "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier",
    "prompt_cache_key",
}  # fmt: skip


def test_all_that_openresponses_requires_is_there() -> None:
    labels = {"safety_identifier": "s", "prompt_cache_key": "k"}
    for finish in (FinishReason.END, FinishReason.LENGTH):
        events = streamed(make(**labels), Chunk(0, "a", [1]), finish=finish)
        for response in (
            events[0]["response"],
            events[-1]["response"],
            full_response(make(**labels), "a", finish=finish),
        ):
            assert set(response) >= OPEN_RESPONSES
            assert (response["completed_at"] is None) == (response["status"] != "completed")
            assert labels.items() <= response.items()


def test_thoughts_come_packed_for_those_who_send_back_nothing_else() -> None:
    finished: dict[str, Any] = {"finish": FinishReason.END, "reasoning": "hm ü"}
    for fields in ({"include": ["reasoning.encrypted_content"]}, {"store": False}):
        (item,) = full_response(make(**fields), **finished)["output"]
        again = parse(writer.REQUEST, json.dumps({"input": [{**item, "content": None}]}).encode())
        assert requests.conversation(again, []).messages[0]["reasoning_content"] == "hm ü"
        (last,) = streamed(make(**fields), Chunk(0, "", [1], reasoning="hm ü"), **finished)[-1]["response"]["output"]
        assert last == item
    assert "encrypted_content" not in full_response(make(), **finished)["output"][0]


def logprobs(text: str) -> list[TokenLogprobs]:
    return [TokenLogprobs(token, -float(place), 1, [(token, -1.0)]) for place, token in enumerate(text.encode())]


INCLUDE: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


def test_log_probabilities_are_those_of_the_message() -> None:
    """Not of thoughts, calls and what ends the answer; each is told once, with the first piece it has a part in."""
    raw = "<hm>| Sü. {f}|"
    entries = logprobs(raw)
    finished: dict[str, Any] = {"finish": FinishReason.END, "reasoning": "hm", "calls": CALLS[:1], "logprobs": entries}
    body = full_response(make(**INCLUDE), "Sü.", **finished)
    (part,) = body["output"][1]["content"]

    assert [(one["token"], one["logprob"]) for one in part["logprobs"][::3]] == [("S", -6.0), (".", -9.0)]
    assert bytes(byte for one in part["logprobs"] for byte in one["bytes"]).decode() == "Sü."
    assert [one["top_logprobs"][0]["logprob"] for one in part["logprobs"]] == [-1.0] * 4
    assert body["top_logprobs"] == 1
    cuts = [Chunk(0, "", [], entries[:3], reasoning="hm"), Chunk(0, "", [], entries[3:8])]
    cuts += [
        Chunk(0, "Sü", [], entries[8:9]),
        Chunk(0, ".", [], entries[9:], FinishReason.END, calls=(CallDelta(index=0, id="c1"),)),
    ]
    events = streamed(make(**INCLUDE), *cuts, **finished)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [[one["logprob"] for one in event["logprobs"]] for event in deltas] == [[-6.0, -7.0, -8.0], [-9.0]]
    assert [event["logprobs"] for event in events if event["type"] == "response.output_text.done"] == [part["logprobs"]]


def test_bytes_that_are_no_text_have_log_probabilities() -> None:
    entries = [TokenLogprobs(token, -float(place), 1, []) for place, token in enumerate(b"a\xff\xffb\xe2\x82")]
    cuts = [Chunk(0, "a", [], entries[:1]), Chunk(0, "", [], entries[5:5]), Chunk(0, "\ufffd\ufffdb", [], entries[1:4])]
    cuts += [Chunk(0, "", [], entries[4:5]), Chunk(0, "\ufffd", [], entries[5:], FinishReason.LENGTH)]
    finished: dict[str, Any] = {"finish": FinishReason.LENGTH, "logprobs": entries}
    body = full_response(make(**INCLUDE), "a\ufffd\ufffdb\ufffd", **finished)

    assert [one["logprob"] for one in body["output"][0]["content"][0]["logprobs"]] == [-0.0, -1, -2, -3, -4, -5]
    assert streamed(make(**INCLUDE), *cuts, **finished)[-1]["response"] == body


def test_a_text_around_a_call_has_its_log_probabilities_too() -> None:
    body = full_response(make(**INCLUDE), "ab", finish=FinishReason.END, calls=CALLS[:1], logprobs=logprobs("a{f}b|"))

    assert [one["logprob"] for one in body["output"][0]["content"][0]["logprobs"]] == [0.0, -4.0]


@pytest.mark.parametrize("finish", [FinishReason.END, FinishReason.LENGTH])
def test_a_kept_response_is_streamed_again_as_it_was(finish: FinishReason) -> None:
    """With the same numbers, so that a stream can be taken up behind any event."""
    kept: dict[str, StoredResponse] = {}
    pieces = [Chunk(0, one.text, one.tokens, logprobs(one.text), reasoning=one.reasoning) for one in PIECES[:2]]
    finished: dict[str, Any] = {"finish": finish, "reasoning": "hm", "calls": CALLS}
    fields: dict[str, Any] = {**INCLUDE, "include": [*INCLUDE["include"], "reasoning.encrypted_content"]}
    sent = streamed(make(kept, **fields), *pieces, *PIECES[2:], **finished)

    assert told(replay_events(kept["resp_1"].body, kept["resp_1"].pieces)) == sent


def test_a_response_that_was_not_streamed_is_so_in_one_piece_per_item() -> None:
    kept: dict[str, StoredResponse] = {}
    body = full_response(make(kept), "So.", finish=FinishReason.END, reasoning="hm", calls=CALLS)
    events = told(replay_events(kept["resp_1"].body, kept["resp_1"].pieces))

    assert events[-1]["response"] == body
    assert [event["delta"] for event in events if "delta" in event] == ["hm", "So.", '{"a": 1}', "{}"]


def test_counted() -> None:
    assert json.loads(writer.encode_token_count(PromptCount(2))) == {
        "object": "response.input_tokens",
        "input_tokens": 2,
    }
