from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from helpers.openai_samples import CHAT, choice, completion, logprob, raw
from helpers.schema_tables import assert_matches_schema
from penstock.errors import InvalidRequest
from penstock.flow import CallDelta, Chunk, DraftedStep, FinishReason, Request, SamplingParams, Tool, ToolCall
from penstock.http.api.openai import chat
from penstock.http.api.openai.chat import ChatWriter, to_requests
from penstock.http.api.openai.schemas import ChatCompletionRequest
from penstock.http.parse.schema import parse
from penstock.tokenize import Tokenizer

PROMPT = [5, 6, 7]


def request(recommended: dict[str, float | int] | None = None, **fields: Any) -> Request:
    body = parse(ChatCompletionRequest, raw({**CHAT, **fields}))
    (made,) = to_requests(body, request_id="req-1", recommended=recommended or {})
    return made


def writer(vocabulary: Tokenizer, **fields: Any) -> ChatWriter:
    body = parse(ChatCompletionRequest, raw({**CHAT, **fields}))
    return ChatWriter(body, request_id="1", model="tiny", created=1_700_000_000, vocabulary=vocabulary)


def decoded(texts: list[bytes]) -> list[dict[str, Any]]:
    """What is sent, which must be what the SDK expects and what /openapi.json says."""
    for text in texts:
        assert_matches_schema(chat.CHUNK, json.loads(text))
        if '"timeout"' not in text.decode():  # the extension
            ChatCompletionChunk.model_validate_json(text, strict=True)
    return [json.loads(text) for text in texts]


def answered(text: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(text)
    assert_matches_schema(chat.RESPONSE, body)
    if all(choice["finish_reason"] != "timeout" for choice in body["choices"]):
        ChatCompletion.model_validate_json(text, strict=True)
    return body


# --- requests


def test_a_plain_request_runs_to_the_end_of_the_context_with_openais_defaults() -> None:
    made = request()

    assert made.id == "req-1"
    assert made.params == SamplingParams(max_tokens=None, temperature=1.0)
    assert made.messages == [{"role": "user", "content": "Hello!"}]
    assert made.add_generation_prompt
    assert not made.continue_final_message


def test_every_sampling_field_arrives() -> None:
    same: dict[str, Any] = {
        "n": 2,
        "seed": 7,
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "repetition_penalty": 1.2,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "min_tokens": 3,
        "max_tokens": 9,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "speculation": False,
        "prompt_logprobs": 4,
    }
    made = request(
        **same, logit_bias={"42": -100, "7": 1.5}, stop=["a", "b"], stop_token_ids=[1, 2], timeout=1.5, logprobs=True,
        top_logprobs=5, priority=-3, cache_salt="mine", chat_template_kwargs={"enable_thinking": False},
    )  # fmt: skip

    assert made.params == SamplingParams(
        **same, logit_bias={42: -100, 7: 1.5}, stop=("a", "b"), stop_tokens=(1, 2), timeout_s=1.5, logprobs=5
    )
    assert (made.priority, made.salt) == (-3, "mine")
    assert made.template_arguments == {"enable_thinking": False}


def test_zeros_are_not_taken_for_nothing() -> None:
    made = request({"temperature": 0.7, "top_k": 20}, temperature=0, top_k=0, prompt_logprobs=0)

    assert made.params == SamplingParams(max_tokens=None, temperature=0, top_k=0, prompt_logprobs=0)


def test_a_top_k_of_minus_one_is_off() -> None:
    assert request({"top_k": 20}, top_k=-1).params.top_k == 0


def test_the_other_name_of_past_reasoning() -> None:
    (message,) = request(messages=[{"role": "assistant", "content": "a", "reasoning": "hm"}]).messages or []

    assert message == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


def test_what_the_makers_recommend_counts_where_the_client_says_nothing() -> None:
    made = request({"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}, top_p=0.5, temperature=None)

    assert (made.params.temperature, made.params.top_p, made.params.repetition_penalty) == (0.2, 0.5, 1.1)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit(name: str) -> None:
    assert request(**{name: 7}).params.max_tokens == 7


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)],
)
def test_logprobs(fields: dict[str, Any], wanted: int | None) -> None:
    assert request(**fields).params.logprobs == wanted


def test_a_stop_string_may_stand_alone() -> None:
    assert request(stop="\n\n").params.stop == ("\n\n",)


def test_limits_that_contradict_each_other() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens") as caught:
        request(min_tokens=9, max_tokens=5)

    assert caught.value.param == "min_tokens"


def test_messages_as_templates_know_them() -> None:
    part = {"type": "text", "text": "two"}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, part], "name": "Ann"},
        {"role": "assistant", "content": "three", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "tool", "content": [part], "tool_call_id": "call-1"},
    ]

    assert request(messages=messages).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo", "name": "Ann"},
        {"role": "assistant", "content": "three"},
        {"role": "tool", "content": "two", "tool_call_id": "call-1"},
    ]


def test_templates_do_not_see_what_client_libraries_note_in_their_copy_of_an_answer() -> None:
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "1", "type": "function", "function": {**function, "parsed_arguments": {"a": 1}}, "index": 0}
    said = {"role": "assistant", "content": "b", "parsed": {"a": 1}, "provider_specific_fields": {"refusal": None}}

    (message,) = request(messages=[{**said, "tool_calls": [{**call, "provider_specific_fields": {}}]}]).messages

    calls = [{"id": "1", "type": "function", "function": function}]
    assert message == {"role": "assistant", "content": "b", "tool_calls": calls}


@pytest.mark.parametrize(
    ("fields", "begins_answer", "goes_on"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
        ({"continue_final_message": False, "add_generation_prompt": True}, True, False),
    ],
)
def test_how_the_prompt_ends(fields: dict[str, Any], begins_answer: bool, goes_on: bool) -> None:
    made = request(**fields)

    assert (made.add_generation_prompt, made.continue_final_message) == (begins_answer, goes_on)


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tools": []}, None),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": [TOOL]}, ("auto", None, True)),
        ({"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True}, ("auto", None, True)),
        ({"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}, ("required", None, False)),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, ("named", "f", True)),
    ],
)
def test_tools(fields: dict[str, Any], expected: Any) -> None:
    use = request(**fields).tools

    assert (use and (use.choice, use.name, use.parallel)) == expected
    if use is not None:
        assert use.tools == (Tool(name="f", description="d", parameters={"type": "object"}),)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ],
)
def test_tools_that_cannot_be_called(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**fields)

    assert caught.value.param == param


def test_calls_and_reasoning_as_templates_know_them() -> None:
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "1", "tool_call_id": "call_1", "name": "f"},
    ]

    assert request(messages=messages, reasoning_effort="low").messages == [
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "1", "tool_call_id": "call_1", "name": "f"},
    ]
    assert request(messages=messages, reasoning_effort="low").reasoning_effort == "low"


# --- streams


def test_a_stream_is_openais(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, stream=True)
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "tiny"}
    done = completion(PROMPT, choice(0, "He", [1, 2]))

    opening = decoded(write.first(0, 0, PROMPT))
    pieces = decoded(write.chunk(0, Chunk(0, "He", [1])))
    ending = decoded(write.chunk(0, Chunk(0, "", [2], finish=FinishReason.END)))

    def choices(delta: dict[str, Any], reason: str | None) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]

    assert opening == [{**head, "choices": choices({"role": "assistant", "content": "", "refusal": None}, None)}]
    assert pieces == [{**head, "choices": choices({"content": "He"}, None)}]
    assert ending == [{**head, "choices": choices({}, "stop")}]
    assert write.last([done]) == []


def test_text_and_end_come_in_two_chunks(vocabulary: Tokenizer) -> None:
    chunks = decoded(writer(vocabulary, stream=True).chunk(0, Chunk(1, "lo", [1], finish=FinishReason.LENGTH)))

    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"content": "lo"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {1}


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishReason.END, "stop"),
        (FinishReason.STOP_TOKEN, "stop"),
        (FinishReason.STOP_STRING, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CONTEXT, "length"),
        (FinishReason.TIMEOUT, "timeout"),
    ],
)
def test_reasons_to_finish(vocabulary: Tokenizer, finish: FinishReason, reason: str) -> None:
    (chunk,) = decoded(writer(vocabulary, stream=True).chunk(0, Chunk(0, "", [], finish=finish)))
    body = answered(writer(vocabulary).full_response([completion(PROMPT, choice(0, "", [1], finish))]))

    assert chunk["choices"][0]["finish_reason"] == reason
    assert body["choices"][0]["finish_reason"] == reason


@pytest.mark.parametrize("finish", [FinishReason.ERROR, FinishReason.CANCELLED])
def test_what_failed_has_no_reason_but_keeps_its_text(vocabulary: Tokenizer, finish: FinishReason) -> None:
    write = writer(vocabulary, stream=True)

    assert write.chunk(0, Chunk(0, "", [], finish=finish)) == []
    (chunk,) = decoded(write.chunk(0, Chunk(0, "x", [1], finish=finish)))
    assert chunk["choices"][0]["finish_reason"] is None


@pytest.mark.parametrize("stop", ["\n\n", 42])
def test_what_stopped_it(vocabulary: Tokenizer, stop: str | int) -> None:
    finish = FinishReason.STOP_STRING if isinstance(stop, str) else FinishReason.STOP_TOKEN
    (chunk,) = decoded(writer(vocabulary, stream=True).chunk(0, Chunk(0, "", [42], None, finish, stop)))
    body = answered(writer(vocabulary).full_response([completion(PROMPT, choice(0, "", [42], finish, stop=stop))]))

    assert chunk["choices"][0]["stop_reason"] == stop
    assert body["choices"][0]["stop_reason"] == stop


def test_tokens_without_text_wait_unless_the_client_wants_every_token(vocabulary: Tokenizer) -> None:
    half = Chunk(0, "", [7])
    counted = Chunk(0, "", [7], [logprob(7)])

    assert writer(vocabulary, stream=True).chunk(0, half) == []
    assert len(writer(vocabulary, stream=True, return_token_ids=True).chunk(0, half)) == 1
    assert len(writer(vocabulary, stream=True, logprobs=True).chunk(0, counted)) == 1


def test_usage_is_null_until_the_end_if_it_is_wanted(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, stream=True, n=2, stream_options={"include_usage": True})
    done = completion(PROMPT, choice(0, "a", [1, 2]), choice(1, "b", [3]), cached_tokens=2)

    chunks = decoded([*write.first(0, 0, PROMPT), *write.chunk(0, Chunk(0, "x", [1], finish=FinishReason.END))])
    (last,) = decoded(write.last([done]))

    assert [chunk["usage"] for chunk in chunks] == [None, None, None]
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_usage_in_every_chunk(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, n=2, stream=True, stream_options={"continuous_usage_stats": True})

    texts = write.first(0, 0, PROMPT, 2) + write.chunk(0, Chunk(0, "a", [1, 2]))
    texts += write.first(0, 1, PROMPT, 2) + write.chunk(0, Chunk(1, "b", [3], finish=FinishReason.LENGTH))
    chunks = decoded(texts)

    counted = [(chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]) for chunk in chunks]
    assert counted == [(3, 0), (3, 2), (3, 2), (3, 3), (3, 3)]
    assert chunks[-1]["usage"]["total_tokens"] == 6
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert write.last([completion(PROMPT, choice(0, "a", [1, 2]), choice(1, "b", [3]))]) == []  # not asked for


def test_usage_in_every_chunk_and_behind_them(vocabulary: Tokenizer) -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    write = writer(vocabulary, stream=True, stream_options=options)
    write.first(0, 0, PROMPT)
    write.chunk(0, Chunk(0, "a", [1]))

    (last,) = decoded(write.last([completion(PROMPT, choice(0, "a", [1]))]))

    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 1)


def test_timings_come_last(vocabulary: Tokenizer) -> None:
    done = completion(PROMPT, choice(0, "abcde", [1, 2, 3, 4, 5]), cached_tokens=2)
    wanted = {
        "queue_seconds": 0.5,
        "prefill_seconds": 0.5,
        "decode_seconds": 2.0,
        "cached_tokens": 2,
        "tokens_per_second": 2.0,
    }

    (last,) = decoded(writer(vocabulary, stream=True, include_timings=True).last([done]))
    assert (last["choices"], last["timings"]) == ([], wanted)
    assert "usage" not in last
    assert answered(writer(vocabulary, include_timings=True).full_response([done]))["timings"] == wanted
    assert "timings" not in answered(writer(vocabulary).full_response([done]))


def test_drafts_come_with_their_chunk(vocabulary: Tokenizer) -> None:
    steps = (DraftedStep([4, 5, 6], [4, 5, 7]), DraftedStep([], [8]))
    chunk = Chunk(0, "", [4, 5, 7, 8], drafts=steps)

    (event,) = decoded(writer(vocabulary, stream=True, include_drafts=True).chunk(0, chunk))

    def texts(*tokens: int) -> list[str]:
        return [vocabulary.token_bytes(token).decode(errors="replace") for token in tokens]

    assert event["choices"][0]["drafts"] == [
        {"drafted": texts(4, 5, 6), "accepted": 2, "tokens": texts(4, 5, 7)},
        {"drafted": [], "accepted": 0, "tokens": texts(8)},
    ]
    with pytest.raises(InvalidRequest, match="stream") as refused:
        request(include_drafts=True)
    assert request(stream=True, include_drafts=True).include_drafts
    assert refused.value.param == "include_drafts"


def test_timings_as_llama_cpp_has_them(vocabulary: Tokenizer) -> None:
    done = completion(PROMPT, choice(0, "abcd", [1, 2, 3, 4]), cached_tokens=1)

    body = answered(writer(vocabulary, timings_per_token=True).full_response([done]))
    both = answered(writer(vocabulary, timings_per_token=True, include_timings=True).full_response([done]))

    assert body["timings"] == {
        "cache_n": 1,
        "prompt_n": 2,
        "prompt_ms": 1000.0,
        "prompt_per_token_ms": 500.0,
        "prompt_per_second": 2.0,
        "predicted_n": 4,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 500.0,
        "predicted_per_second": 2.0,
    }
    assert both["timings"] == body["timings"] | {
        "queue_seconds": 0.5,
        "prefill_seconds": 0.5,
        "decode_seconds": 2.0,
        "cached_tokens": 1,
        "tokens_per_second": 1.5,
    }


def test_timings_in_every_chunk(vocabulary: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 10.5, 12.5])  # made, the first token twice, the second
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    write = writer(vocabulary, stream=True, timings_per_token=True)

    opening, text = decoded(write.first(0, 0, PROMPT, 1) + write.chunk(0, Chunk(0, "ab", [1, 2])))

    assert (opening["timings"]["predicted_n"], opening["timings"]["predicted_per_second"]) == (0, None)
    assert (text["timings"]["prompt_n"], text["timings"]["prompt_ms"], text["timings"]["cache_n"]) == (2, 500.0, 1)
    assert (text["timings"]["predicted_n"], text["timings"]["predicted_per_second"]) == (2, 1.0)
    assert "usage" not in text
    assert write.last([completion(PROMPT, choice(0, "ab", [1, 2]))]) == []


def test_token_ids_on_request(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, stream=True, n=2, return_token_ids=True)

    (first,) = decoded(write.first(0, 0, PROMPT))
    (second,) = decoded(write.first(0, 1, PROMPT))
    piece, end = decoded(write.chunk(0, Chunk(0, "", [9], finish=FinishReason.END)))
    body = answered(
        writer(vocabulary, return_token_ids=True).full_response([completion(PROMPT, choice(0, "a", [1, 9]))])
    )

    assert first["prompt_token_ids"] == PROMPT
    assert "prompt_token_ids" not in second
    assert piece["choices"][0]["token_ids"] == [9]
    assert "token_ids" not in end["choices"][0]
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == (PROMPT, [1, 9])


@pytest.mark.parametrize("text", ["naïve", "日本語", "🦙", '"\\\n\t', "\u2028\x7f", "<|end|>"])
def test_any_text(vocabulary: Tokenizer, text: str) -> None:
    (chunk,) = decoded(writer(vocabulary, stream=True).chunk(0, Chunk(0, text, [1])))
    body = answered(writer(vocabulary).full_response([completion(PROMPT, choice(0, text, [1]))]))

    assert chunk["choices"][0]["delta"]["content"] == text
    assert body["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("fields", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_the_short_way_of_plain_text_writes_what_the_long_one_does(
    vocabulary: Tokenizer, fields: dict[str, Any]
) -> None:
    short, long = writer(vocabulary, **fields), writer(vocabulary, **fields)
    long._text_only = False
    for place, text in enumerate(("a", '"\n\\', "é\x1a\x1a\u2028", "b")):
        chunk = Chunk(place % 2, text, [1])
        assert short.chunk(0, chunk) == long.chunk(0, chunk)


def test_a_text_is_one_line_of_an_event_stream(vocabulary: Tokenizer) -> None:
    (text,) = writer(vocabulary, stream=True).chunk(0, Chunk(0, "a\nb\r\nc", [1]))

    assert b"\n" not in text
    assert b"\r" not in text


CALLS = (
    CallDelta(index=0, id="call_1", name="f"),
    CallDelta(index=0, arguments='{"a":'),
    CallDelta(index=0, arguments=" 1}"),
    CallDelta(index=1, id="call_2", name="f", arguments=""),
)


def test_streamed_calls_are_openais(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, stream=True, tools=[TOOL], return_token_ids=True)

    opening = decoded(write.first(0, 0, PROMPT))[0]["choices"][0]["delta"]
    chunks = decoded(write.chunk(0, Chunk(0, "Hm.", [1, 2], calls=CALLS)))
    ending = decoded(write.chunk(0, Chunk(0, "", [3], finish=FinishReason.END)))

    assert opening == {"role": "assistant", "content": None, "refusal": None}
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"content": "Hm."},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]},
        {"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    ]
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [[1, 2], None, None, None, None]
    assert ending[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [(FinishReason.END, "tool_calls"), (FinishReason.COMPLETE, "tool_calls"), (FinishReason.LENGTH, "length")],
)
def test_how_calls_end(vocabulary: Tokenizer, finish: FinishReason, reason: str) -> None:
    write = writer(vocabulary, stream=True, tools=[TOOL], n=2)
    calls = (ToolCall(id="call_1", name="f", arguments="{}"),)
    done = completion(PROMPT, choice(0, "", [1], finish, calls=calls), choice(1, "", [1], finish))

    write.chunk(0, Chunk(0, "", [1], calls=CALLS))
    ends = [decoded(write.chunk(0, Chunk(index, "", [2], finish=finish)))[-1] for index in range(2)]
    whole = answered(writer(vocabulary, tools=[TOOL], n=2).full_response([done]))

    plain = "length" if reason == "length" else "stop"
    assert [end["choices"][0]["finish_reason"] for end in ends] == [reason, plain]
    assert [choice["finish_reason"] for choice in whole["choices"]] == [reason, plain]
    assert [choice["message"]["content"] for choice in whole["choices"]] == [None, ""]


def test_reasoning_is_streamed_apart(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, stream=True)

    chunks = decoded(write.chunk(0, Chunk(0, "Yes.", [1], reasoning="hm")))

    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"reasoning_content": "hm"}, {"content": "Yes."}]


# --- whole answers


def test_reasoning_can_be_left_out(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, include_reasoning=False)
    thought = choice(0, "Yes", [1, 2], reasoning="hm", reasoning_tokens=1)

    body = answered(write.full_response([completion(PROMPT, thought)]))

    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Yes", "refusal": None}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}  # though it was paid for
    assert write.chunk(0, Chunk(0, "", [1], reasoning="hm")) == []
    (delta,) = decoded(write.chunk(0, Chunk(0, "Yes", [2], reasoning="m")))
    assert delta["choices"][0]["delta"] == {"content": "Yes"}


def test_a_whole_answer_with_calls_and_reasoning(vocabulary: Tokenizer) -> None:
    calls = (ToolCall(id="call_1", name="f", arguments='{"a": 1}'),)
    one = choice(0, "", [1, 2, 3], FinishReason.END, reasoning="hm", calls=calls, reasoning_tokens=2)
    body = answered(writer(vocabulary, tools=[TOOL]).full_response([completion(PROMPT, one)]))

    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "hm",
        "tool_calls": [CALL],
    }
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_a_message_with_calls_can_be_sent_back(vocabulary: Tokenizer) -> None:
    calls = (ToolCall(id="call_1", name="f", arguments='{"a": 1}'),)
    text = writer(vocabulary).full_response([completion(PROMPT, choice(0, "", [1], reasoning="hm", calls=calls))])
    message = ChatCompletion.model_validate_json(text).choices[0].message

    made = request(messages=[*CHAT["messages"], message.model_dump()])

    assert made.messages is not None
    assert made.messages[1] == {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]}


def test_a_whole_answer_is_openais(vocabulary: Tokenizer) -> None:
    done = completion(PROMPT, choice(0, "a", [1]), choice(1, "b", [2, 3], FinishReason.END), cached_tokens=1)

    assert answered(writer(vocabulary, n=2).full_response([done])) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "b", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            },
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_an_answers_message_can_be_sent_back(vocabulary: Tokenizer) -> None:
    text = writer(vocabulary).full_response([completion(PROMPT, choice(0, "a", [1]))])
    message = ChatCompletion.model_validate_json(text).choices[0].message

    made = request(messages=[*CHAT["messages"], message.model_dump(), {"role": "user", "content": "And?"}])

    assert made.messages is not None
    assert made.messages[1] == {"role": "assistant", "content": "a"}


# --- log-probabilities


def test_logprobs_have_text_and_bytes(vocabulary: Tokenizer) -> None:
    first, second = vocabulary.encode("é", add_special=False)  # two bytes, two tokens
    (a,) = vocabulary.encode("a", add_special=False)
    entries = [logprob(first, -0.25, [(first, -0.25), (a, -2.0)]), logprob(second, -float("inf"))]

    done = completion(PROMPT, choice(0, "é", [first, second], logprobs=entries))
    body = answered(writer(vocabulary, logprobs=True, top_logprobs=2).full_response([done]))
    (chunk,) = decoded(writer(vocabulary, stream=True, logprobs=True).chunk(0, Chunk(0, "é", [first, second], entries)))

    assert body["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.25,
                "bytes": [0xC3],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -0.25, "bytes": [0xC3]},
                    {"token": "a", "logprob": -2.0, "bytes": [97]},
                ],
            },
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xA9], "top_logprobs": []},
        ],
        "refusal": None,
    }
    assert chunk["choices"][0]["logprobs"] == body["choices"][0]["logprobs"]


@pytest.mark.parametrize("finish", [FinishReason.END, FinishReason.STOP_TOKEN])
def test_the_token_that_ends_an_answer_is_no_part_of_it(vocabulary: Tokenizer, finish: FinishReason) -> None:
    tokens = [*vocabulary.encode("ab", add_special=False), max(vocabulary.special_ids)]
    entries = [logprob(token) for token in tokens]
    done = completion(PROMPT, choice(0, "ab", tokens, finish, logprobs=entries))

    def shown(**fields: Any) -> list[str]:
        content = answered(writer(vocabulary, logprobs=True, **fields).full_response([done]))["choices"][0]["logprobs"][
            "content"
        ]
        return [entry["token"] for entry in content]

    assert "".join(shown()) == "ab"
    assert "".join(shown(return_token_ids=True)) == "ab<|end|>"  # one for each token id


@pytest.mark.parametrize("finish", [FinishReason.END, FinishReason.STOP_TOKEN])
def test_unless_it_is_shown(vocabulary: Tokenizer, finish: FinishReason) -> None:
    done = choice(0, "a", [5, 6], finish, logprobs=[logprob(5), logprob(6)])

    write = writer(vocabulary, logprobs=True, include_stop_str_in_output=True)
    body = answered(write.full_response([completion(PROMPT, done)]))

    assert len(body["choices"][0]["logprobs"]["content"]) == 2


def test_tokens_by_their_ids(vocabulary: Tokenizer) -> None:
    (a, b) = vocabulary.encode("xz", add_special=False)
    done = choice(0, "x", [a], logprobs=[logprob(a, top=[(b, -0.25)])])
    fields: dict[str, Any] = {"logprobs": True, "prompt_logprobs": 0, "return_tokens_as_token_ids": True}

    write = writer(vocabulary, **fields)
    body = answered(write.full_response([completion([a, b], done, prompt_logprobs=[None, logprob(b)])]))

    (entry,) = body["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == (f"token_id:{a}", [ord("x")])
    assert entry["top_logprobs"][0]["token"] == f"token_id:{b}"
    assert body["prompt_logprobs"][1]["token"] == f"token_id:{b}"


def test_streamed_logprobs_are_those_of_the_whole(vocabulary: Tokenizer) -> None:
    tokens = vocabulary.encode("naïve 🦙", add_special=False)
    entries = [logprob(token, -index / 8, [(token, -1.0)]) for index, token in enumerate(tokens)]
    write = writer(vocabulary, stream=True, logprobs=True, top_logprobs=1)
    stream = vocabulary.text_stream(PROMPT)

    chunks = [
        chunk
        for token, entry in zip(tokens, entries, strict=True)
        for chunk in decoded(write.chunk(0, Chunk(0, stream.push(token), [token], [entry])))
    ]
    done = completion(PROMPT, choice(0, "naïve 🦙", tokens, logprobs=entries))
    body = answered(writer(vocabulary, logprobs=True, top_logprobs=1).full_response([done]))

    assert len(chunks) == len(tokens)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "naïve 🦙"
    streamed = [entry for chunk in chunks for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert streamed == body["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in streamed for byte in entry["bytes"]).decode() == "naïve 🦙"


def test_prompt_logprobs(vocabulary: Tokenizer) -> None:
    prompt = vocabulary.encode("ab", add_special=False) * 2
    done = completion(prompt, choice(0, "a", [1]), prompt_logprobs=[None, logprob(prompt[1], -1.5)])

    body = answered(writer(vocabulary, prompt_logprobs=0).full_response([done]))

    assert body["prompt_logprobs"] == [
        None,
        {"token": "ab", "logprob": -1.5, "bytes": [97, 98], "top_logprobs": []},
    ]
