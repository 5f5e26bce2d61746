from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Request, SamplingParams, Tool, ToolUse
from penstock.http.api.ollama.keep_alive import UNLOAD_WARNING, asks_to_unload
from penstock.http.api.ollama.requests import chat_request, generate_request, to_template
from penstock.http.api.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest
from penstock.http.api.ollama.think import can_think
from penstock.http.parse.schema import parse
from penstock.prompt.chat_format import ChatFormat
from penstock.prompt.template import ChatTemplate

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
CHAT_FORMATS = {
    "plain": ChatFormat(ChatTemplate(PLAIN, {})),
    "thinker": ChatFormat(ChatTemplate(PLAIN + "<think></think>", {})),  # always
    "switched": ChatFormat(ChatTemplate(PLAIN + "{% if enable_thinking %}<think></think>{% endif %}", {})),
    "graded": ChatFormat(ChatTemplate(PLAIN + "{{ reasoning_effort }}", {})),
}
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "max_tokens": None}
USER = {"role": "user", "content": "Hi"}


def chat(chat_format: str = "plain", **fields: Any) -> Request:
    body = parse(OllamaChatRequest, json.dumps({"model": "m", "messages": [USER], **fields}).encode())
    return chat_request(body, request_id="r", recommended={}, context=512, chat_format=CHAT_FORMATS[chat_format])


def generate(chat_format: str | None = "plain", **fields: Any) -> Request:
    body = parse(OllamaGenerateRequest, json.dumps({"model": "m", "prompt": "Hi", **fields}).encode())
    known = None if chat_format is None else CHAT_FORMATS[chat_format]
    return generate_request(body, request_id="r", recommended={}, context=512, chat_format=known)


def shown(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    body = parse(OllamaChatRequest, json.dumps({"model": "m", "messages": messages}).encode())
    return to_template(body.messages or [])


# --- chat


def test_a_plain_conversation() -> None:
    assert chat() == Request(id="r", params=SamplingParams(**DEFAULTS), messages=[USER], fit_context=True)


def test_options_format_and_log_probabilities_arrive() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    made = chat(options={"num_predict": 9}, format=schema, logprobs=True, top_logprobs=3)
    assert (made.params.max_tokens, made.params.logprobs) == (9, 3)
    assert made.params.constraint == Constraint.json_schema(schema)
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(format="json").params.constraint == Constraint.json_object()
    assert chat(format="").params.constraint is None


def test_tools_are_offered() -> None:
    function = {"name": "f", "description": "It.", "parameters": {"type": "object"}}
    tool = Tool(name="f", description="It.", parameters={"type": "object"})
    assert chat(tools=[{"type": "function", "function": function}]).tools == ToolUse(tools=(tool,))
    assert chat(tools=[]).tools is None


def test_the_assistants_last_message_is_continued() -> None:
    made = chat(messages=[USER, {"role": "assistant", "content": "Well"}])
    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)


def test_a_call_wants_its_result() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    with pytest.raises(InvalidRequest, match=r"messages\[1\] calls tools") as caught:
        chat(messages=[USER, call])
    assert caught.value.param == "messages[1]"


def test_what_was_accepted_without_effect_is_told() -> None:
    made = chat(keep_alive=0, truncate=True, shift=True, options={"num_ctx": 1024})
    assert [warning.partition(" ")[0] for warning in made.warnings] == [
        "keep_alive:", "truncate", "shift", "options.num_ctx",
    ]  # fmt: skip
    assert chat(keep_alive="5m", truncate=False, shift=False, options={"num_ctx": 512}).warnings == ()


@pytest.mark.parametrize("given", [0, 0.0, "0", "0s", "-0m0.0s"])
def test_who_asks_to_unload(given: Any) -> None:
    assert asks_to_unload(given)
    assert chat(keep_alive=given).warnings == (UNLOAD_WARNING,)


@pytest.mark.parametrize("given", [None, -1, 0.5, "5m", "0h1s", "-1", pytest.param(10**400, id="huge")])
def test_who_does_not(given: Any) -> None:
    assert not asks_to_unload(given)
    assert chat(keep_alive=given).warnings == ()


# --- messages


def test_calls_and_results_find_each_other_by_name_and_order() -> None:
    calls = [{"function": {"name": name, "arguments": {"n": n}}} for n, name in enumerate("fgf")]
    results = [{"role": "tool", "content": text, "tool_name": name} for text, name in (("1", "g"), ("2", "f"))]
    made = shown(USER, {"role": "assistant", "tool_calls": calls}, *results, {"role": "tool", "content": "3"})
    assert [call["function"]["arguments"] for call in made[1]["tool_calls"]] == [{"n": 0}, {"n": 1}, {"n": 2}]
    first, second, third = [call["id"] for call in made[1]["tool_calls"]]
    assert len({first, second, third}) == 3
    assert [(one["tool_call_id"], one["name"]) for one in made[2:]] == [(second, "g"), (first, "f"), (third, "f")]


def test_ids_of_the_clients_own_are_kept() -> None:
    calls = [{"id": "x", "function": {"name": "f"}}, {"id": "y", "function": {"name": "f"}}]
    made = shown({"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "1", "tool_call_id": "y"})
    assert made[1] == {"role": "tool", "content": "1", "tool_call_id": "y", "name": "f"}


def test_a_result_whose_call_is_gone() -> None:
    assert shown({"role": "tool", "content": "1", "tool_name": "f"}) == [{"role": "tool", "content": "1", "name": "f"}]


def test_thoughts_go_to_the_template() -> None:
    assert shown({"role": "assistant", "content": "b", "thinking": "hm"}) == [
        {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    ]


# --- generate


def test_a_prompt_is_what_the_user_says() -> None:
    assert generate().messages == [USER]
    assert generate(system="Be brief.").messages == [{"role": "system", "content": "Be brief."}, USER]
    assert generate(think=False).text is None


def test_a_raw_prompt_is_taken_as_it_is() -> None:
    made = generate(raw=True, think=False)
    assert (made.text, made.messages, made.reasoning_effort) == ("Hi", None, None)


def test_a_model_without_a_chat_template_continues_the_prompt() -> None:
    assert generate(None).text == "Hi"
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        generate(None, system="Be brief.")
    assert caught.value.param == "system"


# --- thinking


@pytest.mark.parametrize(
    ("chat_format", "think", "effort"),
    [
        ("plain", None, None),
        ("plain", False, None),
        ("thinker", True, None),
        ("switched", None, None),
        ("switched", True, "medium"),
        ("switched", False, "none"),
        ("graded", "high", "high"),
        ("graded", True, "medium"),
    ],
)
def test_think_in_the_words_of_the_template(chat_format: str, think: Any, effort: str | None) -> None:
    made = chat(chat_format, think=think)
    assert (made.reasoning_effort, made.warnings) == (effort, ())
    assert generate(chat_format, think=think).reasoning_effort == effort


@pytest.mark.parametrize("think", [True, "low"])
def test_a_model_that_cannot_think(think: Any) -> None:
    assert not can_think(CHAT_FORMATS["plain"])
    with pytest.raises(InvalidRequest, match="think is not supported") as caught:
        chat(think=think)
    assert caught.value.param == "think"


@pytest.mark.parametrize("think", [False, "low"])
def test_a_model_that_always_thinks(think: Any) -> None:
    (warning,) = chat("thinker", think=think).warnings
    assert warning.startswith(f"think: {str(think).lower()} has no effect")
