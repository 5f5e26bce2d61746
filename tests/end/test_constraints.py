"""Constrained answers through the library, the engine's own process, the server and the command line; tiny model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from helpers.server_process import PATIENCE_S, Server
from penstock import LLM, Constraint, SamplingParams
from penstock.errors import InvalidRequest
from penstock.flow import FinishReason

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["tea", "coffee"]},
        "cups": {"type": "integer", "minimum": 1, "maximum": 40},
        "hot": {"type": "boolean"},
        "notes": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
    },
    "required": ["kind", "cups", "hot", "notes"],
    "additionalProperties": False,
}
DRINK = Constraint.json_schema(SCHEMA)
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "drink", "schema": SCHEMA, "strict": True}}
TALK: list[Any] = [{"role": "user", "content": "the tea"}]
# White space and strings take most of it: a tiny model is no friend of few words.
ROOM = 900


def checked(text: str) -> Any:
    value = json.loads(text)
    jsonschema.validate(value, SCHEMA)
    return value


# --- the library


@pytest.fixture(scope="module")
def shared(tiny: Path) -> Iterator[LLM]:
    with LLM(str(tiny), context=2048, threads=1, kv_memory="20MB") as llm:
        yield llm


def test_every_choice_is_valid_and_the_seed_decides(llm: LLM) -> None:
    params = SamplingParams(constraint=DRINK, max_tokens=ROOM, n=4, seed=11, logprobs=2)
    first, again = llm.chat(TALK, params), llm.chat(TALK, params)
    for choice in first.choices:
        checked(choice.text)
        assert choice.finish is FinishReason.COMPLETE
        assert len(choice.logprobs or []) == len(choice.tokens)
        assert all(entry.rank >= 1 for entry in choice.logprobs or [])  # the model's own: some are unlikely
    assert [choice.text for choice in first.choices] == [choice.text for choice in again.choices]
    assert len({choice.text for choice in first.choices}) == 4


@pytest.mark.parametrize("lookahead", [0, 1])
def test_preempted_and_planned_ahead_it_is_the_same_answer(llm: LLM, tiny: Path, lookahead: int) -> None:
    """Beside free sequences, in a cache too small for all of them."""
    wanted = [SamplingParams(constraint=DRINK, max_tokens=300, seed=seed, temperature=1.5) for seed in range(5)]
    wanted += [SamplingParams(max_tokens=300, seed=seed, ignore_eos=True) for seed in range(8)]
    expected = [llm.generate("the tea", params).tokens for params in wanted]
    with LLM(str(tiny), context=512, threads=1, block_size=8, kv_memory="400KB", lookahead=lookahead) as small:
        found = small.generate(["the tea"] * len(wanted), wanted)
        assert [result.tokens for result in found] == expected
        assert small.stats()["preemptions"] > 0
        small.check_integrity()


def test_cut_short_it_is_a_beginning(llm: LLM) -> None:
    whole = llm.generate("the tea", SamplingParams(constraint=DRINK, max_tokens=ROOM, seed=3))
    cut = llm.generate("the tea", SamplingParams(constraint=DRINK, max_tokens=9, seed=3))
    assert (cut.finish, cut.tokens) == (FinishReason.LENGTH, whole.tokens[:9])
    assert whole.text.startswith(cut.text)


def test_with_other_parameters(llm: LLM) -> None:
    def ask(constraint: Constraint, **params: Any) -> tuple[str, FinishReason]:
        result = llm.generate("the tea", SamplingParams(constraint=constraint, max_tokens=40, seed=1, **params))
        return result.text, result.finish

    letters = Constraint.regex("[xyz]{1,30}")
    assert llm.pipeline.tokenizer is not None
    x, y = (llm.pipeline.tokenizer.encode(letter, add_special=False)[0] for letter in "xy")
    text, finish = ask(letters, min_tokens=30)
    assert (len(text), finish) == (30, FinishReason.COMPLETE)
    assert ask(letters, logit_bias={1: 100.0})[1] is FinishReason.END  # the end token, as soon as it is allowed
    assert ask(letters, logit_bias={x: 100.0, 1: -100.0})[0] == "x" * 30
    assert set(ask(letters, presence_penalty=2.0, repetition_penalty=1.5)[0]) <= set("xyz")
    text, finish = ask(letters, stop=("y",), logit_bias={1: -100.0})
    assert (set(text) <= set("xz"), finish) == (True, FinishReason.STOP_STRING)
    text, finish = ask(letters, stop_tokens=(y,), logit_bias={1: -100.0})
    assert (set(text) <= set("xz"), finish) == (True, FinishReason.STOP_TOKEN)
    assert ask(Constraint.regex("xy+"), allowed_tokens=(x,)) == ("x", FinishReason.DEAD_END)
    assert ask(Constraint.regex("xy*"), banned_tokens=(y,), ignore_eos=True) == ("x", FinishReason.COMPLETE)
    assert ask(Constraint.choice(["x"]), min_tokens=20) == ("x", FinishReason.COMPLETE)
    assert ask(Constraint.grammar('root ::= "x" "y"?'), temperature=0.0)[0] in ("x", "xy")


def test_streams_and_leaving_them(llm: LLM) -> None:
    params = SamplingParams(constraint=DRINK, max_tokens=ROOM, seed=5)
    chunks = list(llm.stream(TALK, params))
    assert "".join(chunk.text for chunk in chunks) == llm.chat(TALK, params).text
    assert chunks[-1].finish is FinishReason.COMPLETE
    stream = llm.stream(TALK, params)
    next(stream)
    stream.close()
    llm.generate("x", SamplingParams(max_tokens=1))  # turns the loop


def test_what_is_wrong_is_said_before_anything_runs(llm: LLM) -> None:
    steps = llm.stats()["steps"]
    bad = SamplingParams(constraint=Constraint.json_schema({"not": {}}))
    with pytest.raises(InvalidRequest, match=r'prompt 1: .*\["not"\]') as caught:
        llm.generate(["a", "b"], [SamplingParams(), bad])
    assert caught.value.param == "constraint.json_schema"
    assert llm.stats()["steps"] == steps


def test_in_a_process_of_its_own(llm: LLM, tiny: Path) -> None:
    params = SamplingParams(constraint=DRINK, max_tokens=ROOM, seed=7, n=2)
    expected = llm.generate("the tea", params)
    with LLM(str(tiny), context=2048, threads=1, kv_memory="20MB", isolate=True) as isolated:
        assert isolated.generate("the tea", params).choices[1].text == expected.choices[1].text
        isolated.check_integrity()


# --- the server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        yield client


@pytest.mark.parametrize(
    ("response_format", "check"),
    [
        (FORMAT, checked),
        ({"type": "json_object"}, lambda text: json.loads(text) if text.endswith("}") else None),
        ({"type": "regex", "regex": "[a-c]{2,4}x"}, lambda text: re.fullmatch("[a-c]{2,4}x", text)[0]),
        ({"type": "choice", "choice": ["yes", "no"]}, ["yes", "no"].index),
        ({"type": "grammar", "grammar": 'start: "(" start ")" | "x"'}, lambda text: text.strip("()") or None),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_response_formats(server: Server, client: openai.OpenAI, response_format: Any, check: Any) -> None:
    asked: dict[str, Any] = {"model": server.model, "max_tokens": ROOM, "seed": 4}
    whole = client.chat.completions.create(messages=TALK, response_format=response_format, **asked)
    text = whole.choices[0].message.content
    assert text
    if whole.choices[0].finish_reason == "stop":
        check(text)
    else:
        assert (whole.choices[0].finish_reason, response_format["type"]) == ("length", "json_object")
    stream = client.chat.completions.create(messages=TALK, response_format=response_format, stream=True, **asked)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
    plain = client.completions.create(
        prompt="the tea", extra_body={"response_format": response_format}, n=2, logprobs=1, **asked
    )
    for choice in plain.choices:
        if choice.finish_reason == "stop":
            check(choice.text)


def test_the_sdk_parses_answers(server: Server, client: openai.OpenAI) -> None:
    import pydantic

    class Cup(pydantic.BaseModel):
        size: int = pydantic.Field(ge=1, le=9)
        full: bool

    answer = client.chat.completions.parse(model=server.model, messages=TALK, response_format=Cup, max_tokens=ROOM)
    cup = answer.choices[0].message.parsed
    assert cup is not None
    assert 1 <= cup.size <= 9


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}


@pytest.mark.parametrize(
    ("response_format", "param", "words"),
    [
        (schema({"not": {}}), "response_format.json_schema.schema", '["not"]'),
        # Out of time or out of memory, whichever comes first.
        (
            schema({"type": "integer", "multipleOf": 123_456_789}),
            "response_format.json_schema.schema",
            "cannot be used",
        ),
        ({"type": "regex", "regex": "("}, "response_format.regex", "unclosed group"),
        ({"type": "choice", "choice": ["a" * 600_000]}, "response_format.choice", "longer than"),
        ({"type": "grammar", "grammar": "start: nothing"}, "response_format.grammar", "nothing"),
        ({"type": "xml"}, "response_format.type", '"json_schema"'),
        (
            {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
            "response_format.json_schema.name",
            "64",
        ),
    ],
)
def test_errors_name_the_place(server: Server, response_format: Any, param: str, words: str) -> None:
    for path, body in (("chat/completions", {"messages": TALK}), ("completions", {"prompt": "a"})):
        answer = httpx.post(
            f"{server.api}/{path}",
            json={"model": server.model, "response_format": response_format, **body},
            timeout=PATIENCE_S,
        )
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["type"]) == (param, "invalid_request_error")
        assert words in error["message"]


GBNF = 'root ::= "so " ("be"\n | "it") "."'


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"regex": "(yes|no)!"}, {"yes!", "no!"}),
        ({"grammar": GBNF}, {"so be.", "so it."}),
        ({"ebnf": GBNF}, {"so be.", "so it."}),
        ({"json_schema": '{"enum": [1, 2]}'}, {"1", "2"}),
        ({"guided_choice": ["tea", "milk"]}, {"tea", "milk"}),
        ({"structured_outputs": {"json": {"enum": ["a"]}}}, {'"a"'}),
    ],
)
def test_names_of_other_servers(server: Server, fields: dict[str, Any], texts: set[str]) -> None:
    for path, body in (("chat/completions", {"messages": TALK}), ("completions", {"prompt": "a"})):
        asked = {"model": server.model, "max_tokens": 9, **body, **fields}
        (choice,) = httpx.post(f"{server.api}/{path}", json=asked, timeout=PATIENCE_S).json()["choices"]
        assert (choice["message"]["content"] if "message" in choice else choice["text"]) in texts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"ebnf": "root ::= nothing"}, "ebnf"),
        ({"json_schema": {"not": {}}}, "json_schema"),
        ({"structured_outputs": {"grammar": "root ::= nothing"}}, "structured_outputs.grammar"),
    ],
)
def test_errors_call_fields_as_the_client_does(server: Server, fields: dict[str, Any], param: str) -> None:
    asked = {"model": server.model, "messages": TALK, "max_tokens": 9, **fields}
    answer = httpx.post(f"{server.api}/chat/completions", json=asked, timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


# --- the command line


def test_run_with_a_constraint(tiny: Path, tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("penstock")), "run", "the tea", "--model", str(tiny)]
        limits = ["--context", "2048", "--threads", "1", "--seed", "2", "--max-tokens", str(ROOM)]
        return subprocess.run([*command, *limits, *options], capture_output=True, text=True, timeout=PATIENCE_S)

    file = tmp_path / "drink.json"
    file.write_text(json.dumps(SCHEMA))
    checked(run("--schema", str(file)).stdout)
    file.write_text('{"not": {}}')
    failed = run("--schema", str(file))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "not supported" in failed.stderr
    assert "exclude each other" in run("--regex", "a", "--choice", "b").stderr  # before anything is loaded
