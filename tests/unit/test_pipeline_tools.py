"""Requests with tools through the pipeline, with vocabularies and templates of real families: the tokens such a model
would write are let through, and come out as calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helpers import reference_data
from helpers.model_specs import small_spec
from penstock.errors import InvalidRequest
from penstock.flow import Choice, Constraint, Delta, FinishReason, Request, SamplingParams, Timings, Tool, ToolUse
from penstock.grammar.compiler import Compiler
from penstock.pipeline import Pipeline
from penstock.prompt.template import ChatTemplate
from penstock.tokenize import Tokenizer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (Tool(name="weather", description="d", parameters=SCHEMA),)
ARGUMENTS = json.dumps({"city": 'Z"ürich }</tool\n🏔'}, ensure_ascii=False)
QWEN_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
LLAMA_CALL = f'{{"name": "weather", "parameters": {ARGUMENTS}}}'
SPEC = small_spec(name="tools", vocab_size=1, context=4096)


class Checker:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler

    def check(self, constraint: Constraint) -> None:
        self.compiler.compile(constraint)

    def close(self) -> None: ...


def made(file: Path, template: str, end: str) -> tuple[Pipeline, Compiler, Tokenizer]:
    tokenizer = Tokenizer.load(file)
    end_token = tokenizer.mark(end)
    assert end_token is not None
    compiler = Compiler(file, tokenizer.vocab_size, (end_token,))
    spec = msgspec.structs.replace(SPEC, vocab_size=tokenizer.vocab_size, end_tokens=(end_token,))
    (source,) = [path.read_text() for path in reference_data.chat_templates() if path.stem == template]
    chat = ChatTemplate(source, {"bos_token": "", "eos_token": end})
    return Pipeline(spec, tokenizer, chat, context=4096, constraints=Checker(compiler)), compiler, tokenizer


@pytest.fixture(scope="module")
def qwen() -> tuple[Pipeline, Compiler, Tokenizer]:
    return made(reference_data.npm_tokenizer("qwen3"), "Qwen-Qwen3-0.6B", "<|im_end|>")


@pytest.fixture(scope="module")
def llama() -> tuple[Pipeline, Compiler, Tokenizer]:
    return made(reference_data.npm_tokenizer("llama3_2"), "meta-llama-Llama-3.2-3B-Instruct", "<|eot_id|>")


def asked(use: ToolUse | None, **fields: Any) -> Request:
    params = fields.pop("params", SamplingParams())
    return Request(id="r", params=params, messages=[{"role": "user", "content": "Hi"}], tools=use, **fields)


def answered(model: tuple[Pipeline, Compiler, Tokenizer], request: Request, text: str) -> Choice:
    """What becomes of this answer, which the request must allow."""
    pipeline, compiler, tokenizer = model
    flight = pipeline.accept(request)
    tokens = tokenizer.encode(text, add_special=False)
    constraint = flight.submits[0].params.constraint
    if constraint is not None:
        matcher = compiler.compile(constraint)
        assert matcher.try_consume_tokens(tokens) == len(tokens)
        assert matcher.is_accepting()
    for token in tokens:
        flight.push(Delta(id="r/0", tokens=[token]))
    flight.push(Delta(id="r/0", finish=FinishReason.COMPLETE, timings=Timings(0.0, 0.0, 0.1, 0.2)))
    return flight.completion().choices[0]


def calls(choice: Choice) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in choice.calls]


def test_qwen_thinks_and_calls(qwen: Any) -> None:
    choice = answered(qwen, asked(ToolUse(tools=TOOLS)), f"<think>\nhm\n</think>\n\nWell.\n{QWEN_CALL}\n{QWEN_CALL}")

    assert (choice.reasoning, choice.text) == ("hm", "Well.")
    assert calls(choice) == [("weather", ARGUMENTS)] * 2
    assert choice.reasoning_tokens == len(qwen[2].encode("\nhm\n</think>", add_special=False))


@pytest.mark.parametrize("how", [{"choice": "required"}, {"choice": "named", "name": "weather"}])
def test_qwen_must_call_but_may_think(qwen: Any, how: dict[str, Any]) -> None:
    use = ToolUse(tools=TOOLS, **how)

    assert calls(answered(qwen, asked(use), f"<think>\nhm\n</think>\n\n{QWEN_CALL}")) == [("weather", ARGUMENTS)]
    silent = answered(qwen, asked(use, reasoning_effort="none"), QWEN_CALL)
    assert (calls(silent), silent.reasoning) == ([("weather", ARGUMENTS)], None)


def test_qwen_answers_in_json_or_calls(qwen: Any) -> None:
    request = asked(ToolUse(tools=TOOLS), params=SamplingParams(constraint=Constraint.json_object()))

    assert answered(qwen, request, '<think>\n\n</think>\n\n{"a": 1}').text == '{"a": 1}'
    assert calls(answered(qwen, request, QWEN_CALL)) == [("weather", ARGUMENTS)]


def test_llama_calls_with_or_without_its_mark(llama: Any) -> None:
    for text in (LLAMA_CALL, f"<|python_tag|>{LLAMA_CALL}"):
        choice = answered(llama, asked(ToolUse(tools=TOOLS)), text)
        assert (choice.text, calls(choice)) == ("", [("weather", ARGUMENTS)])
    assert answered(llama, asked(ToolUse(tools=TOOLS)), "It is {fine}.").text == "It is {fine}."


def test_without_tools_an_answer_is_what_it_is(llama: Any) -> None:
    choice = answered(llama, asked(None), LLAMA_CALL)
    assert (choice.text, choice.calls, choice.reasoning) == (LLAMA_CALL, (), None)


def test_a_tool_whose_schema_cannot_be_used_is_named(llama: Any) -> None:
    bad = Tool(name="bad", parameters={"type": "object", "not": {}})
    with pytest.raises(InvalidRequest, match="bad") as caught:
        llama[0].accept(asked(ToolUse(tools=(*TOOLS, bad))))
    assert caught.value.param == "tools[1].function.parameters"


TAGS = {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True}}}


@pytest.mark.parametrize("how", [{}, {"choice": "required"}, {"choice": "named", "name": "tag"}])
def test_what_cannot_be_enforced_of_a_tool_is_left_out_with_a_warning(llama: Any, how: dict[str, Any]) -> None:
    request = asked(ToolUse(tools=(*TOOLS, Tool(name="tag", parameters=TAGS)), **how))
    request = msgspec.structs.replace(request, warnings=("first",))
    flight = llama[0].accept(request)
    assert flight.warnings == ("first", "calls of the tool tag are not held to uniqueItems of its parameters")
    assert calls(answered(llama, request, '{"name": "tag", "parameters": {"tags": ["a", "a"]}}')) == [
        ("tag", '{"tags": ["a", "a"]}')
    ]
    matcher = llama[1].compile(flight.submits[0].params.constraint)
    wrong = llama[2].encode('{"name": "tag", "parameters": {"tags": ["b', add_special=False)
    assert matcher.try_consume_tokens(wrong) < len(wrong)
    assert "uniqueItems" in llama[2].decode(flight.submits[0].tokens)  # the model is shown all of it


def test_what_cannot_be_enforced_of_a_strict_tool_is_refused(llama: Any) -> None:
    with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
        llama[0].accept(asked(ToolUse(tools=(Tool(name="tag", parameters=TAGS, strict=True),))))
    assert caught.value.param == "tools[0].function.parameters"


def test_json_beside_the_calls_of_a_llama_is_refused(llama: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llama[0].accept(asked(ToolUse(tools=TOOLS), params=SamplingParams(constraint=Constraint.json_object())))
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("fields", [{"tools": ToolUse(tools=TOOLS)}, {"reasoning_effort": "none"}])
def test_a_plain_prompt_has_neither(llama: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="goes with messages only") as caught:
        llama[0].accept(Request(id="r", params=SamplingParams(), text="Hi", **fields))
    assert caught.value.param == next(iter(fields))
