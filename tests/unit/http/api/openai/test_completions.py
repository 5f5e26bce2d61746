from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion as SdkCompletion

from helpers.openai_samples import TEXT, choice, completion, logprob, raw
from helpers.schema_tables import assert_matches_schema
from helpers.tiny_vocabularies import sentencepiece
from penstock.flow import Chunk, FinishReason, Request, SamplingParams, TokenLogprobs
from penstock.http.api.openai import completions
from penstock.http.api.openai.completions import CompletionWriter, to_requests
from penstock.http.api.openai.schemas import CompletionRequest
from penstock.http.parse.schema import parse
from penstock.store.gguf_tokenizer import build_tokenizer
from penstock.tokenize import Tokenizer


def requests(**fields: Any) -> list[Request]:
    return to_requests(parse(CompletionRequest, raw({**TEXT, **fields})), request_id="req-1", recommended={"top_k": 9})


def writer(vocabulary: Tokenizer, **fields: Any) -> CompletionWriter:
    body = parse(CompletionRequest, raw({**TEXT, **fields}))
    return CompletionWriter(body, request_id="1", model="tiny", created=1_700_000_000, vocabulary=vocabulary)


def checked(text: bytes) -> dict[str, Any]:
    """What is sent, which must be what /openapi.json says."""
    body: dict[str, Any] = json.loads(text)
    assert_matches_schema(completions.RESPONSE, body)
    return body


# --- requests


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit(name: str) -> None:
    assert requests(**{name: 7})[0].params.max_tokens == 7


def test_no_tokens_are_not_the_default() -> None:
    assert requests(max_tokens=0, echo=True)[0].params.max_tokens == 0


def test_a_plain_request_has_openais_defaults() -> None:
    (made,) = requests()

    assert made.params == SamplingParams(max_tokens=16, top_k=9)
    assert (made.id, made.text, made.tokens, made.messages) == ("req-1", "ab abc", None, None)


@pytest.mark.parametrize(
    ("prompt", "texts", "tokens"),
    [
        ("a", ["a"], [None]),
        (["a"], ["a"], [None]),
        (["a", "", "b"], ["a", "", "b"], [None, None, None]),
        ([1, 2], [None], [[1, 2]]),
        ([[1, 2], [3]], [None, None], [[1, 2], [3]]),
    ],
)
def test_prompts(prompt: Any, texts: list[Any], tokens: list[Any]) -> None:
    made = requests(prompt=prompt)

    assert [one.text for one in made] == texts
    assert [one.tokens for one in made] == tokens
    assert len({one.id for one in made}) == len(made)


def test_fields_arrive_at_every_prompt() -> None:
    made = requests(prompt=["a", "b"], max_tokens=3, n=2, temperature=0, stop="x", priority=4, cache_salt="s", top_k=1)

    assert [one.params for one in made] == [SamplingParams(max_tokens=3, n=2, temperature=0, stop=("x",), top_k=1)] * 2
    assert {(one.priority, one.salt) for one in made} == {(4, "s")}


@pytest.mark.parametrize(
    ("fields", "of_output", "of_prompt"),
    [
        ({}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 5}, 5, None),
        ({"logprobs": 5, "echo": True}, 5, 5),
        ({"logprobs": 0, "echo": True}, 0, 0),
        ({"echo": True}, None, None),
        ({"logprobs": 2, "echo": True, "prompt_logprobs": 4}, 2, 4),
        ({"prompt_logprobs": 0}, None, 0),
    ],
)
def test_logprobs_that_are_asked_for(fields: dict[str, Any], of_output: int | None, of_prompt: int | None) -> None:
    (made,) = requests(**fields)

    assert (made.params.logprobs, made.params.prompt_logprobs) == (of_output, of_prompt)


# --- answers


def test_a_whole_answer_is_openais(vocabulary: Tokenizer) -> None:
    text = writer(vocabulary).full_response([completion([1, 2], choice(0, "xyz", [3]), cached_tokens=1)])

    SdkCompletion.model_validate_json(text, strict=True)
    assert checked(text) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [{"text": "xyz", "index": 0, "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 1,
            "total_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_choices_are_counted_through_the_prompts(vocabulary: Tokenizer) -> None:
    prompts = ["p", "q"]
    results = [
        completion([1], choice(0, "a", [1]), choice(1, "b", [1])),
        completion([1, 2], choice(0, "c", [1]), choice(1, "d", [1, 2]), cached_tokens=1),
    ]

    body = checked(writer(vocabulary, prompt=prompts, n=2, echo=True).full_response(results))
    write = writer(vocabulary, prompt=prompts, n=2, stream=True, echo=True)
    (echo,) = (checked(text) for text in write.first(1, 0, [1, 2]))
    (piece,) = (checked(text) for text in write.chunk(1, Chunk(1, "d", [1])))

    assert [(one["index"], one["text"]) for one in body["choices"]] == [(0, "pa"), (1, "pb"), (2, "qc"), (3, "qd")]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 5)
    assert [(one["choices"][0]["index"], one["choices"][0]["text"]) for one in (echo, piece)] == [(2, "q"), (3, "d")]


def test_a_stream_is_openais(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, stream=True, stream_options={"include_usage": True})

    assert write.first(0, 0, [1]) == []
    assert write.chunk(0, Chunk(0, "", [1])) == []
    assert write.chunk(0, Chunk(0, "", [], finish=FinishReason.ERROR)) == []
    (text,) = write.chunk(0, Chunk(0, "end", [1], finish=FinishReason.STOP_STRING, stop="."))
    (last,) = write.last([completion([1], choice(0, "end", [1]))])

    SdkCompletion.model_validate_json(text, strict=True)
    assert checked(text) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [{"text": "end", "index": 0, "logprobs": None, "finish_reason": "stop", "stop_reason": "."}],
        "usage": None,
    }
    assert (checked(last)["choices"], checked(last)["usage"]["total_tokens"]) == ([], 2)


def test_a_prompt_of_token_ids_is_echoed_as_text(vocabulary: Tokenizer) -> None:
    tokens = vocabulary.encode("ab naïve")  # with <|start|>

    body = checked(
        writer(vocabulary, prompt=tokens, echo=True).full_response([completion(tokens, choice(0, "!", [1]))])
    )

    assert body["choices"][0]["text"] == "<|start|>ab naïve!"


def test_token_ids_on_request(vocabulary: Tokenizer) -> None:
    fields: dict[str, Any] = {"prompt": [[1, 2], [3]], "return_token_ids": True}
    results = [completion([1, 2], choice(0, "a", [7])), completion([3], choice(0, "b", [8]))]

    body = checked(writer(vocabulary, **fields).full_response(results))
    (first,) = (checked(text) for text in writer(vocabulary, **fields, stream=True).first(1, 0, [3]))

    assert [(one["prompt_token_ids"], one["token_ids"]) for one in body["choices"]] == [([1, 2], [7]), ([3], [8])]
    assert first["choices"][0]["prompt_token_ids"] == [3]


def test_timings_of_several_prompts(vocabulary: Tokenizer) -> None:
    results = [completion([1], choice(0, "abc", [1, 2, 3])), completion([1], choice(0, "abc", [1, 2, 3]))]

    body = checked(writer(vocabulary, prompt=["a", "b"], include_timings=True).full_response(results))

    assert body["timings"]["tokens_per_second"] == 2.0  # four tokens behind the first ones, in two seconds


# --- log-probabilities


def lists(vocabulary: Tokenizer, text: str, entries: list[TokenLogprobs], **fields: Any) -> dict[str, Any]:
    tokens = [entry.token for entry in entries]
    done = completion(vocabulary.encode("ab abc"), choice(0, text, tokens, logprobs=entries))
    found: dict[str, Any] = checked(writer(vocabulary, **fields).full_response([done]))["choices"][0]["logprobs"]
    return found


def test_logprobs_in_lists(vocabulary: Tokenizer) -> None:
    ab, abc = vocabulary.encode("ab", add_special=False) + vocabulary.encode("abc", add_special=False)
    entries = [logprob(ab, -0.5, [(abc, -0.25), (ab, -0.5)]), logprob(abc, -3.0, [(ab, -0.125), (7, -1.0)])]

    assert lists(vocabulary, "ababc", entries, logprobs=1) == {
        "tokens": ["ab", "abc"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{"abc": -0.25, "ab": -0.5}, {"ab": -0.125, "abc": -3.0}],
        "text_offset": [0, 2],
    }


def test_tokens_by_their_ids(vocabulary: Tokenizer) -> None:
    ab, abc = vocabulary.encode("ab", add_special=False) + vocabulary.encode("abc", add_special=False)
    fields: dict[str, Any] = {"logprobs": 1, "return_tokens_as_token_ids": True}

    found = lists(vocabulary, "ab", [logprob(ab, -0.5, [(abc, -0.25)])], **fields)

    assert (found["tokens"], found["text_offset"]) == ([f"token_id:{ab}"], [0])
    assert found["top_logprobs"] == [{f"token_id:{abc}": -0.25, f"token_id:{ab}": -0.5}]


def test_special_tokens_that_are_shown_have_their_width(vocabulary: Tokenizer) -> None:
    tokens = vocabulary.encode("a<|end|>b", add_special=False)
    entries = [logprob(token) for token in tokens]

    shown = lists(vocabulary, "a<|end|>b", entries, logprobs=0, skip_special_tokens=False)

    assert shown["text_offset"] == [0, 1, 8]
    assert lists(vocabulary, "ab", entries, logprobs=0)["text_offset"] == [0, 1, 1]


def test_usage_in_every_chunk(vocabulary: Tokenizer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    write = writer(vocabulary, prompt=["a", "b"], stream=True, stream_options=options)

    write.first(0, 0, [1, 2], 1)
    one = write.chunk(0, Chunk(0, "x", [7]))
    write.first(1, 0, [3], 0)
    two = write.chunk(1, Chunk(0, "y", [8, 9]))

    counted = [checked(text)["usage"] for text in one + two]
    assert [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in counted] == [(2, 1), (3, 3)]
    assert counted[1]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_tokens_of_one_character_share_its_place(vocabulary: Tokenizer) -> None:
    tokens = vocabulary.encode("a🦙b", add_special=False)
    found = lists(vocabulary, "a🦙b", [logprob(token, -float("inf")) for token in tokens], logprobs=0)

    assert found["tokens"] == ["a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\xa6", "bytes:\\x99", "b"]
    assert found["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert found["token_logprobs"] == [-9999.0] * 6
    assert found["top_logprobs"][1] == {"bytes:\\xf0": -9999.0}


def test_an_echo_has_the_prompts_logprobs_in_front(vocabulary: Tokenizer) -> None:
    prompt = vocabulary.encode("ab abc")  # <|start|>, "ab", " ", "abc"
    (z,) = vocabulary.encode("z", add_special=False)
    done = completion(
        prompt,
        choice(0, "z", [z], logprobs=[logprob(z)]),
        prompt_logprobs=[None, *(logprob(token, -1.0) for token in prompt[1:])],
    )

    body = checked(writer(vocabulary, echo=True, logprobs=0).full_response([done]))
    found = body["choices"][0]["logprobs"]

    assert body["choices"][0]["text"] == "ab abcz"
    assert found["tokens"] == ["<|start|>", "ab", " ", "abc", "z"]
    assert found["token_logprobs"] == [None, -1.0, -1.0, -1.0, -0.5]
    assert found["top_logprobs"][0] is None
    assert found["text_offset"] == [0, 0, 2, 3, 6]  # <|start|> is not in the text


def test_special_tokens_written_in_the_prompt_have_their_width(vocabulary: Tokenizer) -> None:
    text = "a<|end|>b"
    prompt = vocabulary.encode(text)
    done = completion(
        prompt,
        choice(0, "!", [1], logprobs=[logprob(1)]),
        prompt_logprobs=[None, *(logprob(token) for token in prompt[1:])],
    )

    found = checked(writer(vocabulary, prompt=text, echo=True, logprobs=0).full_response([done]))["choices"][0][
        "logprobs"
    ]

    assert found["tokens"][:4] == ["<|start|>", "a", "<|end|>", "b"]
    assert found["text_offset"] == [0, 0, 1, 8, 9]


def test_a_space_that_only_the_vocabulary_has_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(build_tokenizer(sentencepiece(add_bos_token=True, bos_token_id=1)))
    vocabulary = Tokenizer.load(path)
    prompt = vocabulary.encode("ab abc")
    done = completion(
        prompt,
        choice(0, " a", [263], logprobs=[logprob(263)]),
        prompt_logprobs=[None, *(logprob(token) for token in prompt[1:])],
    )

    found = checked(writer(vocabulary, echo=True, logprobs=0).full_response([done]))["choices"][0]["logprobs"]

    assert found["tokens"] == ["<s>", " ab", " abc", " a"]
    assert found["text_offset"] == [0, 0, 2, 6]


def test_streamed_lists_are_those_of_the_whole(vocabulary: Tokenizer) -> None:
    prompt = vocabulary.encode("ab abc")
    tokens = vocabulary.encode("naïve 🦙!", add_special=False)
    entries = [logprob(token, -index / 8) for index, token in enumerate(tokens)]
    write = writer(vocabulary, stream=True, logprobs=0)
    write.first(0, 0, prompt)
    stream = vocabulary.text_stream(prompt)

    chunks = [
        checked(text)["choices"][0]["logprobs"]
        for token, entry in zip(tokens, entries, strict=True)
        for text in write.chunk(0, Chunk(0, stream.push(token), [token], [entry]))
    ]

    whole = lists(vocabulary, "naïve 🦙!", entries, logprobs=0)
    assert {name: [item for chunk in chunks for item in chunk[name]] for name in whole} == whole


def echoing(vocabulary: Tokenizer, **fields: Any) -> tuple[CompletionWriter, list[int], list[TokenLogprobs | None]]:
    prompt = vocabulary.encode("ab abc")
    entries = [None, *(logprob(token, -1.0, [(token, -1.0)]) for token in prompt[1:])]
    return writer(vocabulary, echo=True, logprobs=1, stream=True, **fields), prompt, entries


def test_a_streamed_echo_has_the_prompts_logprobs(vocabulary: Tokenizer) -> None:
    write, prompt, entries = echoing(vocabulary)
    (z,) = vocabulary.encode("z", add_special=False)
    done = completion(prompt, choice(0, "z", [z], logprobs=[logprob(z)]), prompt_logprobs=entries)

    assert write.first(0, 0, prompt) == []
    texts = write.chunk(0, Chunk(0, "z", [z], [logprob(z)], FinishReason.LENGTH, prompt_logprobs=entries))

    chunks = [checked(text)["choices"][0] for text in texts]
    whole = checked(write.full_response([done]))["choices"][0]
    assert [chunk["text"] for chunk in chunks] == ["ab abc", "z"]
    assert [chunk["finish_reason"] for chunk in chunks] == [None, "length"]
    for name, values in whole["logprobs"].items():
        assert [value for chunk in chunks for value in chunk["logprobs"][name]] == values


def test_choices_wait_for_the_prompt_they_share(vocabulary: Tokenizer) -> None:
    write, prompt, entries = echoing(vocabulary, n=3, prompt=["ab abc", "ab abc"])

    early = write.first(0, 1, prompt) + write.chunk(0, Chunk(1, "x", [5], [logprob(5)]))
    early += write.chunk(0, Chunk(1, "y", [6], [logprob(6)], FinishReason.LENGTH))
    assert early == []
    texts = write.first(0, 0, prompt) + write.chunk(0, Chunk(0, "z", [7], [logprob(7)], prompt_logprobs=entries))
    texts += write.first(0, 2, prompt) + write.chunk(0, Chunk(2, "w", [8], [logprob(8)]))

    chunks = [checked(text)["choices"][0] for text in texts]
    assert [(chunk["index"], chunk["text"]) for chunk in chunks] == [
        (1, "ab abc"), (0, "ab abc"), (1, "x"), (1, "y"), (0, "z"), (2, "ab abc"), (2, "w")
    ]  # fmt: skip
    assert {len(chunk["logprobs"]["tokens"]) for chunk in chunks if chunk["text"] == "ab abc"} == {len(prompt)}
    assert write.first(1, 0, prompt) == []  # the other prompt is yet to come


def test_an_echo_without_logprobs_of_what_ended_before_they_came(vocabulary: Tokenizer) -> None:
    write, prompt, _ = echoing(vocabulary)
    write.first(0, 0, prompt)

    texts = write.chunk(0, Chunk(0, "", [], [], FinishReason.TIMEOUT))

    chunks = [checked(text)["choices"][0] for text in texts]
    assert [(chunk["text"], chunk["finish_reason"]) for chunk in chunks] == [("ab abc", None), ("", "timeout")]
    assert chunks[0]["logprobs"] is None


@pytest.mark.parametrize(("kept", "text"), [(1, "abc"), (4, "ab abc"), (99, "ab abc")])
def test_what_is_left_of_a_prompt_is_echoed(vocabulary: Tokenizer, kept: int, text: str) -> None:
    tokens = vocabulary.encode("ab abc")[-kept:]

    body = checked(
        writer(vocabulary, echo=True, truncate_prompt_tokens=kept).full_response(
            [completion(tokens, choice(0, "!", [1]))]
        )
    )

    assert body["choices"][0]["text"] == f"{text}!"


def test_the_token_that_ends_an_answer_is_no_part_of_it(vocabulary: Tokenizer) -> None:
    write = writer(vocabulary, stream=True, logprobs=0)
    write.first(0, 0, [1])
    end = max(vocabulary.special_ids)

    (text,) = write.chunk(0, Chunk(0, "", [end], [logprob(end)], FinishReason.END))

    assert checked(text)["choices"][0]["logprobs"]["tokens"] == []


def test_the_short_way_of_plain_text_writes_what_the_long_one_does(vocabulary: Tokenizer) -> None:
    prompts = {"prompt": ["a", "b"], "n": 2}
    short, long = writer(vocabulary, **prompts), writer(vocabulary, **prompts)
    long._text_only = False
    for place, text in enumerate(("a", '"\n', "é\u2028", "b")):
        chunk = Chunk(place % 2, text, [1])
        assert short.chunk(place // 2, chunk) == long.chunk(place // 2, chunk)
