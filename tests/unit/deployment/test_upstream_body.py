"""Requests of all APIs in the form of an OpenAI-compatible upstream, and fields that one cannot serve."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from penstock.deployment.upstream_body import to_body
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Request, SamplingParams, Tool, ToolUse
from penstock.settings.models import Capability

ALL: frozenset[Capability] = frozenset(get_args(Capability))
CHAT: frozenset[Capability] = frozenset(("chat",))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def endpoint(capabilities: frozenset[Capability] = ALL, **fields: Any) -> Endpoint:
    return Endpoint(name="big", url="http://x/v1", model="there", capabilities=capabilities, **fields)


def request(**fields: Any) -> Request:
    params = SamplingParams(max_tokens=None, **fields.pop("params", {}))
    if not fields.keys() & {"text", "tokens", "messages"}:
        fields["messages"] = [{"role": "user", "content": "Hi"}]
    return Request(id="r", params=params, **fields)


def extra(**fields: Any) -> dict[str, Any]:
    """What a request has in its body beside what all have."""
    _, body = to_body(request(**fields), endpoint())
    plain = {"model", "messages", "stream", "stream_options"}
    return {name: value for name, value in body.items() if name not in plain}


def test_defaults_are_left_to_the_upstream() -> None:
    assert extra() == {}


def test_a_conversation_with_calls_is_openai_s() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I look.",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "found", "tool_call_id": "c", "name": "look"},
    ]
    route, body = to_body(request(messages=messages), endpoint())
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
    assert route == "chat/completions"
    assert body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "I look."},
        {"role": "tool", "content": "found", "tool_call_id": "c"},
    ]
    _, plain = to_body(request(messages=messages), endpoint(frozenset(("chat",))))
    assert "reasoning_content" not in plain["messages"][1]


def test_tools_and_their_choice() -> None:
    look = Tool(name="look", description="Look.", parameters=SCHEMA, strict=True)
    function = {"name": "look", "description": "Look.", "parameters": SCHEMA, "strict": True}
    listed = [{"type": "function", "function": function}]
    assert extra(tools=ToolUse(tools=(look,))) == {"tools": listed}
    assert extra(tools=ToolUse(tools=(look,), choice="required", parallel=False)) == {
        "tools": listed,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    named = extra(tools=ToolUse(tools=(look,), choice="named", name="look"))
    assert named["tool_choice"] == {"type": "function", "function": {"name": "look"}}


def test_constraints() -> None:
    def constrained(constraint: Constraint) -> dict[str, Any]:
        return extra(params={"constraint": constraint})

    assert constrained(Constraint.json_object()) == {"response_format": {"type": "json_object"}}
    schema = constrained(Constraint.json_schema(SCHEMA))["response_format"]
    assert (schema["type"], schema["json_schema"]["schema"]) == ("json_schema", SCHEMA)
    assert constrained(Constraint.choice(["a", "b"])) == {"guided_choice": ["a", "b"]}
    assert constrained(Constraint.regex("a+")) == {"guided_regex": "a+"}


def test_prompts_and_embeddings_have_routes_of_their_own() -> None:
    route, body = to_body(request(text="Once"), endpoint())
    assert (route, body["prompt"]) == ("completions", "Once")
    route, body = to_body(request(tokens=[1, 2]), endpoint())
    assert (route, body["prompt"]) == ("completions", [1, 2])
    route, body = to_body(request(text="word", task="embed"), endpoint())
    assert (route, body["input"], "stream" in body) == ("embeddings", "word", False)


def test_log_probabilities_differ_between_chats_and_prompts() -> None:
    assert extra(params={"logprobs": 3}) == {"logprobs": True, "top_logprobs": 3}
    assert extra(text="Once", params={"logprobs": 3}) == {"logprobs": 3, "prompt": "Once"}


def test_the_field_of_the_output_limit_can_be_chosen() -> None:
    asked = Request(id="r", params=SamplingParams(max_tokens=5), messages=[{"role": "user", "content": "Hi"}])
    _, body = to_body(asked, endpoint(max_tokens_field="max_completion_tokens"))
    assert body["max_completion_tokens"] == 5
    assert "max_tokens" not in body


def test_tenants_share_no_cache_at_an_upstream_that_can_divide_it() -> None:
    salts = [extra(tenant=tenant, salt=salt).get("cache_salt") for tenant in ("", "a", "b") for salt in ("", "x")]
    assert salts[0] is None
    assert len(set(salts)) == 6


UNSERVED: list[tuple[dict[str, Any], str]] = [
    ({"text": "Once"}, "prompt"),
    ({"tokens": [1]}, "prompt"),
    ({"text": "a", "task": "embed"}, "input"),
    ({"tools": ToolUse(tools=(Tool(name="look"),))}, "tools"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"enable_thinking": True}, "enable_thinking"),
    ({"thinking_budget": 5}, "thinking_budget"),
    ({"continue_final_message": True, "add_generation_prompt": False}, "continue_final_message"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"template_arguments": {"a": 1}}, "chat_template_kwargs"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"priority": 1}, "priority"),
    ({"shows_token_ids": True}, "return_token_ids"),
    ({"salt": "x"}, "cache_salt"),
    ({"params": {"constraint": Constraint.json_object()}}, "constraint.json_object"),
    ({"params": {"constraint": Constraint.regex("a")}}, "constraint.regex"),
    ({"params": {"logprobs": 0}}, "logprobs"),
    ({"params": {"logit_bias": {1: 1.0}}}, "logit_bias"),
    ({"params": {"top_k": 5}}, "top_k"),
    ({"params": {"min_p": 0.1}}, "min_p"),
    ({"params": {"typical_p": 0.9}}, "typical_p"),
    ({"params": {"repetition_penalty": 1.1}}, "repetition_penalty"),
    ({"params": {"min_tokens": 5}}, "min_tokens"),
    ({"params": {"stop_tokens": (5,)}}, "stop_tokens"),
    ({"params": {"ignore_eos": True}}, "ignore_eos"),
    ({"params": {"include_stop_str_in_output": True}}, "include_stop_str_in_output"),
    ({"params": {"skip_special_tokens": False}}, "skip_special_tokens"),
    ({"params": {"stop": ("a", "b", "c", "d", "e")}}, "stop"),
    ({"params": {"prompt_logprobs": 1}}, "prompt_logprobs"),
    ({"params": {"allowed_tokens": (1,)}}, "allowed_tokens"),
    ({"params": {"banned_tokens": (1,)}}, "banned_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), UNSERVED, ids=[param for _, param in UNSERVED])
def test_a_field_that_the_upstream_cannot_serve_is_rejected_with_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        to_body(request(**fields), endpoint(CHAT))
    assert caught.value.param == param
    assert "'big'" in caught.value.message


def test_every_sampling_parameter_is_sent_or_rejected() -> None:
    """A field that is added to SamplingParams must not be dropped on the way."""
    changed = {
        **dict.fromkeys(("top_p", "min_p", "typical_p"), 0.5),
        **dict.fromkeys(("min_tokens", "n", "seed", "top_k", "max_tokens"), 3),
        **dict.fromkeys(("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"), 0.5),
        **dict.fromkeys(("allowed_tokens", "banned_tokens", "stop_tokens"), (1,)),
        **dict.fromkeys(("logprobs", "prompt_logprobs"), 1),
        "logit_bias": {1: 1.0},
        "constraint": Constraint.json_object(),
        "stop": ("a",),
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "speculation": False,
        "timeout_s": 5.0,  # is kept here
    }
    assert changed.keys() == set(SamplingParams.__struct_fields__)
    for name, value in changed.items():
        params = SamplingParams(**{"max_tokens": None, name: value})
        asked = Request(id="r", params=params, messages=[])
        if name in ("allowed_tokens", "banned_tokens", "prompt_logprobs"):
            with pytest.raises(InvalidRequest):
                to_body(asked, endpoint())
        else:
            assert len(to_body(asked, endpoint())[1]) > 4 or name == "timeout_s", name


def test_thinking_that_is_switched_off_is_neutral_for_an_upstream_that_does_not_think() -> None:
    _, body = to_body(request(reasoning_effort="none"), endpoint(CHAT))
    assert "reasoning_effort" not in body
    assert extra(reasoning_effort="none") == {"reasoning_effort": "none"}
