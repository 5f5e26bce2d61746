"""From a parsed request, of whichever API, to the body for an OpenAI-compatible upstream.

What the upstream does not declare is rejected, and the error names it: a field is never dropped silently.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from penstock.deployment.upstream_endpoint import Endpoint
from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Message, Request, SamplingParams, ToolUse
from penstock.settings.models import Capability

MAX_STOPS = 4  # of OpenAI's API

_DEFAULTS = SamplingParams()
_STANDARD = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
# Fields that vLLM and Penstock have beside OpenAI's, by their names in a SamplingParams.
_EXTENSIONS = {
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "stop_tokens": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "include_stop_str_in_output": "include_stop_str_in_output",
    "skip_special_tokens": "skip_special_tokens",
    "speculation": "speculation",
}
_UNSUPPORTED = ("allowed_tokens", "banned_tokens", "prompt_logprobs")
_CONSTRAINTS = {"regex": "guided_regex", "choice": "guided_choice", "grammar": "guided_grammar"}


def to_body(request: Request, endpoint: Endpoint) -> tuple[str, dict[str, Any]]:
    """The route, and the body for it. Raises InvalidRequest for what the upstream cannot serve."""
    body: dict[str, Any] = {"model": endpoint.model}
    if request.task == "embed":
        _need(endpoint, "embedding", "input")
        return "embeddings", body | {"input": _prompt(request, endpoint, "input"), "encoding_format": "float"}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.messages is None:
        _need(endpoint, "completion", "prompt")
        body["prompt"] = _prompt(request, endpoint, "prompt")
    else:
        _need(endpoint, "chat", "messages")
        reasoning = "reasoning" in endpoint.capabilities
        body["messages"] = [_message(message, reasoning=reasoning) for message in request.messages]
    body |= _sampling(request.params, endpoint, chat=request.messages is not None)
    if request.tools is not None:
        _need(endpoint, "tools", "tools")
        body |= _tools(request.tools)
    if request.params.constraint is not None:
        body |= _constraint(request.params.constraint, endpoint)
    body |= _thinking(request, endpoint) | _options(request, endpoint)
    return "completions" if request.messages is None else "chat/completions", body


def _need(endpoint: Endpoint, capability: Capability, field: str) -> None:
    if capability not in endpoint.capabilities:
        raise InvalidRequest(
            f"{field} is not supported: the upstream {endpoint.name!r} does not declare {capability!r}", param=field
        )


def _prompt(request: Request, endpoint: Endpoint, field: str) -> str | list[int]:
    if request.tokens is not None:
        _need(endpoint, "token_ids", field)
        return request.tokens
    if not request.text and request.task == "embed":
        raise InvalidRequest("the input is empty", param=field)
    return request.text or ""


def _message(message: Message, *, reasoning: bool) -> dict[str, Any]:
    """A template's message in OpenAI's form: arguments are JSON texts, and only its fields are there."""
    shown: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
    if "tool_call_id" in message:
        shown["tool_call_id"] = message["tool_call_id"]
    elif message.get("name"):
        shown["name"] = message["name"]
    if calls := message.get("tool_calls"):
        shown["tool_calls"] = [_call(call) for call in calls]
    if reasoning and message.get("reasoning_content"):
        shown["reasoning_content"] = message["reasoning_content"]
    return shown


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    named = {"name": function["name"], "arguments": text}
    return {"id": call.get("id") or f"call_{function['name']}", "type": "function", "function": named}


def _sampling(params: SamplingParams, endpoint: Endpoint, *, chat: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(params, name) for name in _STANDARD if _is_set(params, name)}
    for name in _UNSUPPORTED:
        if _is_set(params, name):
            raise InvalidRequest(f"{name} is not supported by the upstream {endpoint.name!r}", param=name)
    for name, field in _EXTENSIONS.items():
        if _is_set(params, name):
            _need(endpoint, "extensions", name)
            fields[field] = getattr(params, name)
    if params.max_tokens is not None:
        if params.max_tokens == 0:
            raise InvalidRequest(
                f"max_tokens must be at least 1: the upstream {endpoint.name!r} scores no prompts", param="max_tokens"
            )
        fields[endpoint.max_tokens_field] = params.max_tokens
    if params.n > 1:
        fields["n"] = params.n
    if params.stop:
        if len(params.stop) > MAX_STOPS:
            _need(endpoint, "extensions", "stop")
        fields["stop"] = list(params.stop)
    if params.logit_bias:
        _need(endpoint, "token_ids", "logit_bias")
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    if params.logprobs is not None:
        _need(endpoint, "logprobs", "logprobs")
        fields |= {"logprobs": True, "top_logprobs": params.logprobs} if chat else {"logprobs": params.logprobs}
    return fields


def _is_set(params: SamplingParams, name: str) -> bool:
    return bool(getattr(params, name) != getattr(_DEFAULTS, name))


def _tools(use: ToolUse) -> dict[str, Any]:
    tools = []
    for tool in use.tools:
        function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters or {"type": "object"}}
        if tool.description:
            function["description"] = tool.description
        if tool.strict:
            function["strict"] = True
        tools.append({"type": "function", "function": function})
    body: dict[str, Any] = {"tools": tools}
    if use.choice == "named":
        body["tool_choice"] = {"type": "function", "function": {"name": use.name}}
    elif use.choice == "required":
        body["tool_choice"] = "required"
    if not use.parallel:
        body["parallel_tool_calls"] = False
    return body


def _constraint(constraint: Constraint, endpoint: Endpoint) -> dict[str, Any]:
    _need(endpoint, "structured_output", constraint.param)
    if constraint.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if constraint.kind == "json_schema":
        schema = {"name": "answer", "strict": True, "schema": msgspec.json.decode(constraint.source)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    _need(endpoint, "extensions", constraint.param)
    choices = constraint.kind == "choice"
    value = msgspec.json.decode(constraint.source) if choices else constraint.source
    return {_CONSTRAINTS[constraint.kind]: value}


def _thinking(request: Request, endpoint: Endpoint) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    effort = request.reasoning_effort
    if effort is not None and not (effort == "none" and "reasoning" not in endpoint.capabilities):
        _need(endpoint, "reasoning", "reasoning_effort")
        fields["reasoning_effort"] = effort
    for name, field in (("enable_thinking", "enable_thinking"), ("thinking_budget", "thinking_token_budget")):
        if (value := getattr(request, name)) is not None:
            _need(endpoint, "reasoning", name)
            _need(endpoint, "extensions", name)
            fields[field] = value
    return fields


def _options(request: Request, endpoint: Endpoint) -> dict[str, Any]:
    """Fields that only servers with extensions have. Their cache is divided by tenant too, as the one here."""
    fields: dict[str, Any] = {}
    if request.shows_token_ids:
        text = f"token ids cannot be shown: those of the upstream {endpoint.name!r} are not known"
        raise InvalidRequest(text, param="return_token_ids")
    if request.inspect or request.forced:
        raise InvalidRequest(f"the upstream {endpoint.name!r} cannot be inspected", param="model")
    if request.continue_final_message:
        _need(endpoint, "extensions", "continue_final_message")
        fields["continue_final_message"] = True
    elif not request.add_generation_prompt:
        _need(endpoint, "extensions", "add_generation_prompt")
        fields["add_generation_prompt"] = False
    if request.template_arguments:
        _need(endpoint, "extensions", "chat_template_kwargs")
        fields["chat_template_kwargs"] = request.template_arguments
    if request.truncate_prompt_tokens is not None:
        _need(endpoint, "extensions", "truncate_prompt_tokens")
        fields["truncate_prompt_tokens"] = request.truncate_prompt_tokens
    if request.priority:
        _need(endpoint, "extensions", "priority")
        fields["priority"] = request.priority
    if request.salt:
        _need(endpoint, "extensions", "cache_salt")
    if (request.salt or request.tenant) and "extensions" in endpoint.capabilities:
        owner = msgspec.msgpack.encode((request.tenant, request.salt))
        fields["cache_salt"] = blake2b(owner, digest_size=16, person=b"upstream salt").hexdigest()
    return fields
