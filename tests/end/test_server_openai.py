"""The real openai SDK against a real server: what it gets is what the library gives for the same model."""

import asyncio
from typing import Any

import openai
import pytest

from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS, LONG_CONTEXT
from penstock import LLM, SamplingParams
from penstock.flow import Choice

TALK: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Where is Zürich? 🏔"}]
PROMPT = "the rain in Spain"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
IDS = {"return_token_ids": True}

# What the SDK is given, and the same for the library. Everything is drawn with a seed, so it must come out the same.
PARAMETERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.7}, {"temperature": 0.7}),
    ({"temperature": 2, "top_p": 0.5}, {"temperature": 2.0, "top_p": 0.5}),
    ({"n": 3}, {"n": 3}),
    ({"n": 2, "stop": "e"}, {"n": 2, "stop": ("e",)}),
    ({"stop": ["s", "ta", "zzzz", "q"]}, {"stop": ("s", "ta", "zzzz", "q")}),
    ({"presence_penalty": 2, "frequency_penalty": -1.5}, {"presence_penalty": 2.0, "frequency_penalty": -1.5}),
    ({"logit_bias": {"70": 8, "71": -100}}, {"logit_bias": {70: 8.0, 71: -100.0}}),
    ({"extra_body": {"top_k": 3}}, {"top_k": 3}),
    ({"extra_body": {"min_p": 0.3}}, {"min_p": 0.3}),
    ({"extra_body": {"typical_p": 0.4}}, {"typical_p": 0.4}),
    ({"extra_body": {"repetition_penalty": 1.8}}, {"repetition_penalty": 1.8}),
    (
        {"logit_bias": {"1": 100}, "extra_body": {"min_tokens": 5}},
        {"logit_bias": {1: 100.0}, "min_tokens": 5},
    ),
    (
        {"logit_bias": {"1": 9}, "extra_body": {"ignore_eos": True}},
        {"logit_bias": {1: 9.0}, "ignore_eos": True},
    ),
    (
        {"logit_bias": {"90": 100}, "extra_body": {"stop_token_ids": [90], "min_tokens": 3}},
        {"logit_bias": {90: 100.0}, "stop_tokens": (90,), "min_tokens": 3},
    ),
]
FINISH = {"end": "stop", "stop_token": "stop", "stop_string": "stop", "length": "length", "context": "length"}


def told(choices: Any) -> list[tuple[str, str, list[int]]]:
    """Of choices as the SDK has them: text, finish reason, token ids."""
    return [
        (choice.message.content if hasattr(choice, "message") else choice.text, choice.finish_reason, choice.token_ids)
        for choice in choices
    ]


def expected(choices: list[Choice]) -> list[tuple[str, str, list[int]]]:
    return [(choice.text, FINISH[choice.finish], choice.tokens) for choice in choices]


def seeded(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    """With a seed and token ids, over what a row of PARAMETERS has in its extra body."""
    return {"seed": 7, **given, "extra_body": {**IDS, **given.get("extra_body", {})}, **more}


def near(values: Any) -> Any:
    return pytest.approx(values, abs=1e-4)


# --- the same answers as the library's


def test_chat(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    answer = client.chat.completions.create(model=server.model, messages=TALK, **GREEDY)
    wanted = llm.chat(TALK, SamplingParams(temperature=0.0, max_tokens=24))
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", wanted.text)
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, FINISH[wanted.finish], None)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", server.model)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(wanted.prompt_tokens)
    assert answer.usage.completion_tokens == len(wanted.tokens)
    assert answer.usage.total_tokens == len(wanted.prompt_tokens) + len(wanted.tokens)


def test_completion(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(model=server.model, prompt=PROMPT, temperature=0)
    wanted = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=16))
    assert answer.choices[0].text == wanted.text
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(wanted.tokens)


@pytest.mark.parametrize(("given", "params"), PARAMETERS, ids=lambda value: "-".join(value))
def test_parameters(
    server: Server, client: openai.OpenAI, llm: LLM, given: dict[str, Any], params: dict[str, Any]
) -> None:
    sampling = SamplingParams(seed=7, max_tokens=20, **params)
    chat = client.chat.completions.create(model=server.model, messages=TALK, **seeded(given, max_completion_tokens=20))
    assert told(chat.choices) == expected(llm.chat(TALK, sampling).choices)
    text = client.completions.create(model=server.model, prompt=PROMPT, **seeded(given, max_tokens=20))
    assert told(text.choices) == expected(llm.generate(PROMPT, sampling).choices)


@pytest.mark.parametrize("given", [given for given, _ in PARAMETERS], ids=lambda value: "-".join(value))
def test_a_stream_is_the_whole_in_pieces(server: Server, client: openai.OpenAI, given: dict[str, Any]) -> None:
    request = seeded(given, model=server.model, prompt=PROMPT, max_tokens=20)
    whole = client.completions.create(**request)
    pieces: dict[int, list[Any]] = {choice.index: ["", None, []] for choice in whole.choices}
    with client.completions.create(**request, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                piece = pieces[choice.index]
                assert piece[1] is None, "nothing comes behind the finish reason"
                piece[0] += choice.text
                piece[1] = choice.finish_reason
                piece[2] += getattr(choice, "token_ids", None) or []
    assert [tuple(piece) for piece in pieces.values()] == told(whole.choices)


def test_prompts_of_every_kind(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    texts = [PROMPT, "on the plain"]
    ids = [[5, 6, 7], [8, 9]]
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    for prompt, single in ((texts, texts), (ids, ids), (ids[0], [ids[0]])):
        answer = client.completions.create(model=server.model, prompt=prompt, temperature=0, max_tokens=8, n=2)
        wanted = [llm.generate(one, greedy).text for one in single for _ in range(2)]
        assert [choice.text for choice in answer.choices] == wanted
        assert [choice.index for choice in answer.choices] == list(range(len(wanted)))


def test_echo(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    greedy = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=8))
    request: dict[str, Any] = {"model": server.model, "prompt": PROMPT, "echo": True, "temperature": 0, "max_tokens": 8}
    assert client.completions.create(**request).choices[0].text == PROMPT + greedy.text
    with client.completions.create(**request, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == PROMPT + greedy.text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"ignore_eos": True}, ""),
        ({"ignore_eos": True, "skip_special_tokens": False}, "</s></s>"),
        ({"skip_special_tokens": False}, ""),  # it is the end, and no part of what it ends
        ({"include_stop_str_in_output": True}, ""),
        ({"include_stop_str_in_output": True, "skip_special_tokens": False}, "</s>"),
    ],
)
def test_special_tokens(server: Server, client: openai.OpenAI, fields: dict[str, Any], text: str) -> None:
    asked: dict[str, Any] = {"model": server.model, "logit_bias": {"1": 100}, "max_tokens": 2, "extra_body": fields}
    assert client.completions.create(prompt=PROMPT, **asked).choices[0].text == text
    chunks = list(client.chat.completions.create(messages=TALK, stream=True, **asked))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_usage_in_every_chunk(server: Server, client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(
            model=server.model, messages=TALK, stream=True, stream_options=options, **GREEDY, extra_body=IDS
        )
    )
    used = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert len(used) == len(chunks)
    drawn = 0
    for chunk, usage in zip(chunks, used, strict=True):
        drawn += sum(len(getattr(choice, "token_ids", ())) for choice in chunk.choices)
        assert (usage.completion_tokens, usage.total_tokens) == (drawn, drawn + usage.prompt_tokens)
    assert (used[0].completion_tokens, used[-1].completion_tokens) == (0, 24)


def test_log_probabilities(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, ignore_eos=True)
    (wanted,) = llm.chat(TALK, params).choices
    assert wanted.logprobs is not None
    request = {**GREEDY, "max_tokens": 12, "logprobs": True, "top_logprobs": 3, "extra_body": {"ignore_eos": True}}
    chat = client.chat.completions.create(model=server.model, messages=TALK, **request)
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    # A prompt found in the prefix cache is not computed with the same shapes: the last bits differ.
    assert [entry.logprob for entry in logprobs.content] == near([entry.logprob for entry in wanted.logprobs])
    raw = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert raw.decode(errors="replace") == chat.choices[0].message.content
    for entry in logprobs.content:  # greedy: the drawn token is the likeliest
        assert (entry.top_logprobs[0].bytes, entry.top_logprobs[0].logprob) == (entry.bytes, entry.logprob)
        assert len(entry.top_logprobs) == 3
    with client.chat.completions.create(model=server.model, messages=TALK, stream=True, **request) as stream:
        pieces = [choice.logprobs.content for chunk in stream for choice in chunk.choices if choice.logprobs]
    streamed = [entry for piece in pieces for entry in piece or []]
    assert [entry.bytes for entry in streamed] == [entry.bytes for entry in logprobs.content]
    assert [entry.logprob for entry in streamed] == near([entry.logprob for entry in logprobs.content])


def test_log_probabilities_of_a_streamed_completion(server: Server, client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": server.model, "prompt": PROMPT, "logprobs": 2, "n": 2, "seed": 3}
    whole = client.completions.create(**request)
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    lists: list[dict[str, list[Any]]] = [{name: [] for name in names} for _ in whole.choices]
    with client.completions.create(**request, stream=True) as stream:
        for choice in [choice for chunk in stream for choice in chunk.choices if choice.logprobs]:
            for name in names:
                lists[choice.index][name] += getattr(choice.logprobs, name)
    for choice, streamed in zip(whole.choices, lists, strict=True):
        assert choice.logprobs is not None
        assert streamed["tokens"] == choice.logprobs.tokens
        assert streamed["text_offset"] == choice.logprobs.text_offset
        assert streamed["token_logprobs"] == near(choice.logprobs.token_logprobs)
        assert [set(top) for top in streamed["top_logprobs"]] == [
            set(top) for top in choice.logprobs.top_logprobs or []
        ]


def test_log_probabilities_of_an_echoed_prompt(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(
        model=server.model, prompt=PROMPT, temperature=0, max_tokens=4, echo=True, logprobs=2
    )
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=2)
    wanted = llm.generate(PROMPT, params)
    assert wanted.prompt_logprobs is not None
    assert wanted.choices[0].logprobs is not None
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    entries = [*wanted.prompt_logprobs, *wanted.choices[0].logprobs]
    assert logprobs.token_logprobs == near([None if entry is None else entry.logprob for entry in entries])
    assert logprobs.top_logprobs is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.tokens or []) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == len(entries)


# --- streams


def test_scoring(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    """As lm-eval asks for it: what the prompt's tokens score, and nothing else."""
    asked: dict[str, Any] = {"model": server.model, "prompt": [PROMPT, "tea"], "max_tokens": 0, "logprobs": 2}
    answer = client.completions.create(echo=True, **asked)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    for given, choice in zip(asked["prompt"], answer.choices, strict=True):
        wanted = llm.generate(given, SamplingParams(max_tokens=0, prompt_logprobs=2))
        scores = [None if entry is None else entry.logprob for entry in wanted.prompt_logprobs or ()]
        assert (choice.finish_reason, wanted.tokens) == ("length", [])
        assert choice.logprobs is not None
        assert (choice.logprobs.token_logprobs, choice.logprobs.token_logprobs[0]) == (near(scores), None)
    assert answer.choices[0].text == PROMPT
    chunks = list(client.completions.create(echo=True, stream=True, **asked))
    for index, choice in enumerate(answer.choices):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(chunk.text for chunk in mine) == choice.text
        told = [score for chunk in mine if chunk.logprobs for score in chunk.logprobs.token_logprobs or ()]
        assert (told, mine[-1].finish_reason) == (near((choice.logprobs or told).token_logprobs), "length")


def test_a_streamed_echo_with_log_probabilities(server: Server, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": server.model, "prompt": PROMPT, "echo": True, "logprobs": 1, "n": 2, "seed": 5}
    whole = client.completions.create(**asked)
    chunks = [chunk.choices[0] for chunk in client.completions.create(stream=True, **asked)]
    for choice in whole.choices:
        mine = [chunk for chunk in chunks if chunk.index == choice.index]
        assert "".join(chunk.text for chunk in mine) == choice.text
        lists = [chunk.logprobs for chunk in mine if chunk.logprobs is not None]
        assert choice.logprobs is not None
        assert [token for one in lists for token in one.tokens or ()] == choice.logprobs.tokens
        assert [place for one in lists for place in one.text_offset or ()] == choice.logprobs.text_offset


def test_a_prompt_that_may_be_cut(server: Server, client: openai.OpenAI) -> None:
    long = [5] * LONG_CONTEXT + [6, 7, 8]
    asked: dict[str, Any] = {"model": server.model, "prompt": long, "max_tokens": 4, "echo": True}
    cut = client.completions.create(**asked, extra_body={"truncate_prompt_tokens": 2, **IDS}).choices[0]
    assert cut.prompt_token_ids == [7, 8]  # type: ignore[attr-defined]
    embedded = client.embeddings.create(model=server.model, input=long, extra_body={"truncate_prompt_tokens": 3})
    assert embedded.usage.prompt_tokens == 3


def test_a_role_that_the_template_knows(server: Server, client: openai.OpenAI) -> None:
    said: Any = [*TALK, {"role": "critic", "content": "Boo"}]
    answer = client.chat.completions.create(model=server.model, messages=said, max_tokens=1, extra_body=IDS)
    shown = client.post("/../detokenize", body={"tokens": answer.prompt_token_ids}, cast_to=object)  # type: ignore[attr-defined]
    assert "[critic] Boo" in str(shown)


def test_the_chunks_of_a_chat(server: Server, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=server.model, messages=TALK, **GREEDY)
    with client.chat.completions.create(
        model=server.model, messages=TALK, stream=True, stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        first, *chunks, last = stream
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].delta.role is None for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    finishes = [chunk.choices[0].finish_reason for chunk in chunks]
    assert finishes == [None] * (len(finishes) - 1) + [whole.choices[0].finish_reason]
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None for chunk in (first, *chunks))
    assert len({chunk.id for chunk in (first, *chunks, last)}) == 1


def test_characters_of_several_tokens_arrive_whole(server: Server, client: openai.OpenAI) -> None:
    """Each byte is a token of its own here, so that most tokens end in the middle of a character."""
    text = "é€🏔" * 8
    ends = {0: ""}  # by bytes, which are tokens: the text up to there, at ends of characters
    for end in range(1, len(text) + 1):
        ends[len(text[:end].encode())] = text[:end]
    request: dict[str, Any] = {"model": server.model, "messages": TALK, "max_tokens": 100}
    request["extra_body"] = {**IDS, "response_format": {"type": "choice", "choice": [text]}}
    whole = client.chat.completions.create(**request).choices[0]
    assert (whole.message.content, len(whole.token_ids)) == (text, 72)  # type: ignore[attr-defined]
    shown, tokens = "", 0
    with client.chat.completions.create(**request, stream=True) as stream:
        for choice in (chunk.choices[0] for chunk in stream):
            shown += choice.delta.content or ""
            tokens += len(getattr(choice, "token_ids", None) or [])
            assert shown == ends[max(end for end in ends if end <= tokens)]
    assert (shown, tokens) == (text, 72)


def test_async(server: Server, client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model=server.model, messages=TALK, **GREEDY).choices[0].message.content
    text = client.completions.create(model=server.model, prompt=PROMPT, **GREEDY).choices[0].text

    async def ask() -> None:
        async with server.async_client() as client:
            whole, stream, plain = await asyncio.gather(
                client.chat.completions.create(model=server.model, messages=TALK, **GREEDY),
                client.chat.completions.create(model=server.model, messages=TALK, stream=True, **GREEDY),
                client.completions.create(model=server.model, prompt=PROMPT, stream=True, **GREEDY),
            )
            assert whole.choices[0].message.content == chat
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == chat
            assert "".join([chunk.choices[0].text async for chunk in plain]) == text

    asyncio.run(ask())


def test_the_sdks_own_stream_helper(server: Server, client: openai.OpenAI) -> None:
    """It takes an answer that was cut off for an error, so this one ends by itself."""
    ending: dict[str, Any] = {**GREEDY, "logit_bias": {"1": 100}, "extra_body": {"min_tokens": 9}}
    with client.chat.completions.stream(model=server.model, messages=TALK, **ending) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    whole = client.chat.completions.create(model=server.model, messages=TALK, **ending)
    assert whole.choices[0].message.content
    assert final.choices[0].message.content == whole.choices[0].message.content


# --- beyond OpenAI


def test_a_request_out_of_time_returns_what_it_has(server: Server, client: openai.OpenAI) -> None:
    endless: dict[str, Any] = {"model": server.model, "prompt": PROMPT, "temperature": 0, "max_tokens": ENDLESS_TOKENS}
    for timeout_s in (1.0, 10.0, PATIENCE_S / 2):  # longer where a busy machine has no token within a second
        extra = {"timeout": timeout_s, "ignore_eos": True}
        (whole,) = client.completions.create(**endless, extra_body=extra).choices
        assert whole.finish_reason == "timeout"
        if whole.text:
            break
    assert whole.text
    with client.completions.create(**endless, stream=True, extra_body=extra) as stream:
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "timeout"
    streamed = "".join(chunk.choices[0].text for chunk in chunks)
    shorter, longer = sorted((streamed, whole.text), key=len)
    assert longer.startswith(shorter.rstrip("\ufffd"))  # cut in the middle of a character


def test_timings(server: Server, client: openai.OpenAI) -> None:
    answer: Any = client.completions.create(
        model=server.model, prompt=PROMPT * 8, max_tokens=8, extra_body={"include_timings": True, "ignore_eos": True}
    )
    assert answer.timings["queue_seconds"] >= 0
    assert answer.timings["prefill_seconds"] > 0
    assert answer.timings["tokens_per_second"] > 0
    again = client.completions.create(model=server.model, prompt=PROMPT * 8, max_tokens=8)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    salted = client.completions.create(
        model=server.model, prompt=PROMPT * 8, max_tokens=8, extra_body={"cache_salt": "mine"}
    )
    assert salted.usage is not None
    assert salted.usage.prompt_tokens_details is not None
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


def test_the_last_message_can_be_continued(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    talk: list[Any] = [*TALK, {"role": "assistant", "content": "In the"}]
    answer = client.chat.completions.create(
        model=server.model, messages=talk, extra_body={"continue_final_message": True}, **GREEDY
    )
    wanted = llm.chat(
        talk,
        SamplingParams(temperature=0.0, max_tokens=24),
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert answer.choices[0].message.content == wanted.text


# --- errors, models, headers

WRONG: list[tuple[type[openai.APIStatusError], str | None, str, dict[str, Any]]] = [
    (openai.NotFoundError, "model", "model_not_found", {"model": "gpt-4"}),
    (openai.BadRequestError, "temperature", "invalid_request", {"temperature": 3}),
    (openai.BadRequestError, "top_p", "invalid_request", {"top_p": 0}),
    (openai.BadRequestError, "n", "invalid_request", {"n": 0}),
    (openai.BadRequestError, "max_tokens", "invalid_request", {"max_tokens": 0}),
    (openai.BadRequestError, "max_tokens", "context_length_exceeded", {"max_tokens": 1_000_000}),
    (openai.BadRequestError, "temprature", "invalid_request", {"extra_body": {"temprature": 1}}),
    (openai.BadRequestError, "messages[1].content", "invalid_request", {"messages": [TALK[1], {"role": "user"}]}),
    (openai.BadRequestError, "messages[0].role", "invalid_request", {"messages": [{"role": "a b", "content": ""}]}),
    (openai.BadRequestError, "tools[0].function", "invalid_request", {"tools": [{"type": "function"}]}),
    (openai.BadRequestError, "response_format.type", "invalid_request", {"response_format": {"type": "xml"}}),
    (openai.BadRequestError, "stream_options", "invalid_request", {"stream_options": {"include_usage": True}}),
    (openai.BadRequestError, "top_logprobs", "invalid_request", {"top_logprobs": 2}),
    (openai.BadRequestError, "logit_bias", "invalid_request", {"logit_bias": {"320": 1}}),
    (openai.BadRequestError, "stop_token_ids", "invalid_request", {"extra_body": {"stop_token_ids": [999]}}),
    (openai.BadRequestError, "timeout", "invalid_request", {"extra_body": {"timeout": 0}}),
    (openai.BadRequestError, "logit_bias", "invalid_request", {"logit_bias": {"320": 1}, "stream": True}),
]


@pytest.mark.parametrize(("kind", "param", "code", "wrong"), WRONG, ids=[str(row[3])[:40] for row in WRONG])
def test_errors(
    server: Server,
    client: openai.OpenAI,
    kind: type[openai.APIStatusError],
    param: str,
    code: str,
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": server.model, "messages": TALK, **wrong})
    error = caught.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.request_id
    assert param in str(error)


def test_an_overflow_says_how_many_tokens_there_are(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(
        openai.BadRequestError, match=rf"4 tokens and up to {LONG_CONTEXT} .* holds {LONG_CONTEXT}"
    ) as caught:
        client.completions.create(model=server.model, prompt=[5, 6, 7, 8], max_tokens=LONG_CONTEXT)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=server.model, prompt=[5] * LONG_CONTEXT)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_neutral_values_are_taken(server: Server, client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model=server.model,
        messages=TALK,
        max_tokens=1,
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        store=False,
        service_tier="auto",
        modalities=["text"],
        metadata={"a": "b"},
        user="me",
        stop=None,
        seed=None,
        extra_body={
            "skip_special_tokens": True,
            "spaces_between_special_tokens": True,
            "include_stop_str_in_output": False,
            "include_reasoning": True,
            "cache_prompt": True,
            "top_k": -1,
            "best_of": 1,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    )
    client.completions.create(model=server.model, prompt=PROMPT, extra_body={"max_completion_tokens": 1, "top_k": -1.0})


def test_models(server: Server, client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == (server.model, "model", "penstock")
    assert client.models.retrieve(server.model) == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_headers(server: Server, client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": server.model, "prompt": PROMPT, "max_tokens": 4}
    named = client.completions.with_raw_response.create(**request, extra_headers={"x-request-id": "mine-1"})
    assert named.headers["x-request-id"] == "mine-1"
    stages = [stage.partition(";dur=") for stage in named.headers["server-timing"].split(", ")]
    assert [name for name, _, _ in stages] == ["queue", "prefill", "decode"]
    assert all(float(spent) >= 0 for _, _, spent in stages)
    first = client.completions.with_raw_response.create(**request).headers["x-request-id"]
    second = client.completions.with_raw_response.create(**request).headers["x-request-id"]
    assert first != second
    with client.completions.with_streaming_response.create(
        **request, stream=True, extra_headers={"x-request-id": "mine-2"}
    ) as stream:
        assert stream.headers["x-request-id"] == "mine-2"
        assert stream.headers["server-timing"].startswith("first;dur=")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{**request, "n": 0}, extra_headers={"x-request-id": "mine-3"})
    assert caught.value.request_id == "mine-3"
    for name in ("mine-1", "mine-2", "mine-3"):
        until(lambda name=name: f" {name}\n" in server.log, "the line in the log")  # type: ignore[misc]
