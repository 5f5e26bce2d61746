"""From the bodies of chat and generate to a flow.Request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Message, Request, Tool, ToolUse
from penstock.http.api.ollama.keep_alive import UNLOAD_WARNING, asks_to_unload
from penstock.http.api.ollama.options import option_warnings, sampling_params
from penstock.http.api.ollama.schemas import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaGeneration,
    OllamaMessage,
    OllamaTool,
)
from penstock.http.api.ollama.think import effort_of
from penstock.prompt.chat_format import ChatFormat

# For `client_field_names`.
CLIENT_NAMES = {
    "reasoning_effort": "think",
    "constraint.json_object": "format",
    "constraint.json_schema": "format",
    "continue_final_message": "messages",
    "max_tokens": "options.num_predict",
    "stop": "options.stop",
}
GENERATE_CLIENT_NAMES = {**CLIENT_NAMES, "messages": "prompt"}


def chat_request(
    body: OllamaChatRequest,
    *,
    request_id: str,
    recommended: Mapping[str, float | int],
    context: int | None,
    chat_format: ChatFormat | None,
    remote: Collection[str] = (),
) -> Request:
    """For a conversation that is not empty. `recommended` is ModelFiles.sampling, `context` the server's, `remote` what
    an upstream can do, whose chat format is not known. Raises InvalidRequest for what the schema cannot check."""
    messages = to_template(body.messages or [])
    last = messages[-1]
    continues = last["role"] == "assistant"
    if "tool_calls" in last:
        place = f"messages[{len(messages) - 1}]"
        raise InvalidRequest(f"{place} calls tools: send their results after it", param=place)
    prompt = {
        "messages": messages,
        "continue_final_message": continues,
        "add_generation_prompt": not continues,
        "tools": _tools(body.tools or []),
    }
    return _request(body, request_id, recommended, context, _effort(body, chat_format, remote, prompt), prompt)


def generate_request(
    body: OllamaGenerateRequest,
    *,
    request_id: str,
    recommended: Mapping[str, float | int],
    context: int | None,
    chat_format: ChatFormat | None,
    remote: Collection[str] = (),
) -> Request:
    """The prompt is a user message, or a text to complete if the model has no chat template."""
    prompt: dict[str, Any]
    if body.raw or (chat_format is None and "chat" not in remote):
        if body.system:
            raise InvalidRequest("system is not supported: this model has no chat template", param="system")
        prompt = {"text": body.prompt}
    else:
        system = [{"role": "system", "content": body.system}] if body.system else []
        prompt = {"messages": [*system, {"role": "user", "content": body.prompt}]}
    return _request(body, request_id, recommended, context, _effort(body, chat_format, remote, prompt), prompt)


def _effort(
    body: OllamaGeneration, chat_format: ChatFormat | None, remote: Collection[str], prompt: dict[str, Any]
) -> tuple[str | None, tuple[str, ...]]:
    """`reasoning_effort` of flow.Request, and warnings."""
    if prompt.get("text") is not None:
        return None, ()
    if "reasoning" in remote and body.think is not None:
        return ("none" if body.think is False else "medium" if body.think is True else str(body.think)), ()
    return effort_of(body.think, chat_format)


def _request(
    body: OllamaGeneration,
    request_id: str,
    recommended: Mapping[str, float | int],
    context: int | None,
    thinking: tuple[str | None, tuple[str, ...]],
    prompt: dict[str, Any],
) -> Request:
    effort, warnings = thinking
    params = sampling_params(
        body.options,
        recommended,
        constraint=_constraint(body.format),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return Request(
        id=request_id,
        params=params,
        fit_context=True,
        reasoning_effort=effort,
        warnings=(*warnings, *_warnings(body), *option_warnings(body.options, context)),
        **prompt,
    )


def _constraint(given: str | dict[str, Any] | None) -> Constraint | None:
    if not given and not isinstance(given, dict):
        return None
    return Constraint.json_object() if isinstance(given, str) else Constraint.json_schema(given)


def _warnings(body: OllamaGeneration) -> list[str]:
    warnings = []
    if asks_to_unload(body.keep_alive):
        warnings.append(UNLOAD_WARNING)
    if body.truncate:
        warnings.append("truncate has no effect: a prompt that does not fit the context is rejected")
    if body.shift:
        warnings.append("shift has no effect: generation ends when the context is full")
    return warnings


def _tools(tools: list[OllamaTool]) -> ToolUse | None:
    if not tools:
        return None
    return ToolUse(
        tools=tuple(
            Tool(
                name=tool.function.name,
                description=tool.function.description or "",
                parameters=tool.function.parameters or {},
                strict=bool(tool.function.strict),
            )
            for tool in tools
        )
    )


# --- messages


def to_template(messages: list[OllamaMessage]) -> list[Message]:
    """Messages for the chat template. Calls without an id get one, and results are matched to calls by the tool's name,
    otherwise by order."""
    converted: list[Message] = []
    unanswered: list[tuple[str, str]] = []  # calls: id and name
    for place, message in enumerate(messages):
        entry: Message = {"role": message.role, "content": message.content or ""}
        if message.name is not None:
            entry["name"] = message.name
        if message.thinking:
            entry["reasoning_content"] = message.thinking
        if message.tool_calls:
            entry["tool_calls"] = _calls(message, place)
            unanswered += [(call["id"], call["function"]["name"]) for call in entry["tool_calls"]]
        if message.role == "tool":
            entry.update(_matching_call(message, unanswered))
        converted.append(entry)
    return converted


def _calls(message: OllamaMessage, place: int) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id or f"call_{place}_{number}",
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for number, call in enumerate(message.tool_calls or ())
    ]


def _matching_call(message: OllamaMessage, unanswered: list[tuple[str, str]]) -> dict[str, str]:
    """The call and the tool of a result. If the conversation no longer has the call, what the result itself says."""
    for call in unanswered:
        call_id, name = call
        if message.tool_call_id in (None, "", call_id) and (message.tool_name or name) == name:
            unanswered.remove(call)
            return {"tool_call_id": call_id, "name": name}
    given = {"tool_call_id": message.tool_call_id, "name": message.tool_name}
    return {key: value for key, value in given.items() if value}
