"""From a body and the stored previous response to flow.Request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Message, Request, SamplingParams
from penstock.http.api.conversation import ConversationBuilder
from penstock.http.api.fields import join_text, read_arguments
from penstock.http.api.function_tools import tool_use
from penstock.http.api.generation_fields import stop_strings
from penstock.http.api.recommended_sampling import merge_recommended
from penstock.http.api.response_format import JsonObjectFormat
from penstock.http.api.responses import encrypted_reasoning
from penstock.http.api.responses.item_schemas import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    LocalShellCallItem,
    LocalShellCallOutputItem,
    MessageItem,
    ReasoningItem,
    SkippedItem,
)
from penstock.http.api.responses.schemas import DroppedTool, InputTokensRequest, JsonSchema, ResponseRequest

# For `client_field_names`.
CLIENT_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "constraint.json_schema": "text.format.schema",
    "constraint.json_object": "text.format",
    ".function.parameters": ".parameters",
}


def conversation(body: InputTokensRequest, before: Sequence[Message]) -> ConversationBuilder:
    """The conversation without the instructions. `before` is that of the previous response."""
    turns = ConversationBuilder(before)
    if isinstance(body.input, str):
        turns.add_text("user", body.input)
    else:
        for place, item in enumerate(body.input or ()):
            _add(turns, item, f"input[{place}]")
    if not turns.messages:
        raise InvalidRequest("input has no item that can be shown to the model", param="input")
    return turns


def to_request(
    body: ResponseRequest, turns: ConversationBuilder, *, request_id: str, recommended: Mapping[str, float | int]
) -> Request:
    """Raises InvalidRequest for what the schema cannot check."""
    top_k = 0 if body.top_k == -1 else body.top_k
    requested = {"temperature": body.temperature, "top_p": body.top_p, "top_k": top_k}
    penalties = {"presence_penalty": body.presence_penalty, "frequency_penalty": body.frequency_penalty}
    others = {"seed": body.seed, "ignore_eos": body.ignore_eos, "speculation": body.speculation}
    params = SamplingParams(
        **merge_recommended(recommended, requested | penalties | others),
        stop=stop_strings(body.stop),
        max_tokens=body.max_output_tokens,
        constraint=_constraint(body),
        logprobs=(body.top_logprobs or 0) if body.with_logprobs else None,
    )
    return replace(_request(body, turns, request_id, params), **body.assembly())


def to_count(body: InputTokensRequest, turns: ConversationBuilder) -> Request:
    return _request(body, turns, "", SamplingParams())


def _request(body: InputTokensRequest, turns: ConversationBuilder, request_id: str, params: SamplingParams) -> Request:
    return Request(
        id=request_id,
        params=params,
        messages=_with_instructions(turns.messages, body.instructions),
        tools=tool_use(body.functions, body.tool_choice, body.parallel_tool_calls),
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        template_arguments=body.chat_template_kwargs or {},
        warnings=tuple(_warnings(body)),
    )


def _add(turns: ConversationBuilder, item: Item, place: str) -> None:
    match item:
        case MessageItem():
            turns.add_text("system" if item.role == "developer" else item.role, join_text(item.content))
        case ReasoningItem():
            if text := _reasoning(item):
                turns.add_reasoning(text)
        case FunctionCallItem():
            given = read_arguments(item.arguments)
            turns.add_tool_call(item.call_id, _tool_name(item), item.arguments if given is None else given)
        case CustomToolCallItem():
            turns.add_tool_call(item.call_id, _tool_name(item), {"input": item.input})
        case LocalShellCallItem():
            turns.add_tool_call(item.call_id, "local_shell", item.action)
        case FunctionCallOutputItem() | CustomToolCallOutputItem():
            turns.add_tool_result(item.call_id, join_text(item.output), param=f"{place}.call_id")
        case LocalShellCallOutputItem():
            turns.add_tool_result(item.id, item.output, param=f"{place}.id")


def _tool_name(item: FunctionCallItem | CustomToolCallItem) -> str:
    return item.name if item.namespace is None else f"{item.namespace}.{item.name}"


def _reasoning(item: ReasoningItem) -> str:
    if item.content:
        return "".join([part.text for part in item.content])
    return encrypted_reasoning.unpack(item.encrypted_content or "") or ""


def _warnings(body: InputTokensRequest) -> list[str]:
    """What is accepted without effect."""
    warnings = {f"tools of type {tool.type} are left out" for tool in body.tools or () if isinstance(tool, DroppedTool)}
    if any(tool.defer_loading for tool in body.functions):
        warnings.add("defer_loading has no effect: all tools are shown to the model")
    if body.text is not None and body.text.verbosity in ("low", "high"):
        warnings.add("text.verbosity has no effect")
    if body.reasoning is not None and {body.reasoning.summary, body.reasoning.generate_summary} - {None, "auto"}:
        warnings.add("reasoning.summary has no effect: reasoning is never summarized")
    if isinstance(body, ResponseRequest) and body.client_metadata:
        warnings.add("client_metadata has no effect")
    for item in body.input if isinstance(body.input, list) else ():
        if isinstance(item, SkippedItem):
            warnings.add(f"items of type {item.type} are left out")
        elif isinstance(item, ReasoningItem) and item.encrypted_content and not _reasoning(item):
            warnings.add("encrypted_content is left out: only the server that wrote it can read it")
    return sorted(warnings)


def _with_instructions(messages: list[Message], instructions: str | None) -> list[Message]:
    """Chat templates expect one system message, at the start."""
    if not instructions:
        return messages
    if messages[0]["role"] == "system":
        instructions, messages = f"{instructions}\n{messages[0]['content']}", messages[1:]
    return [{"role": "system", "content": instructions}, *messages]


def _constraint(body: ResponseRequest) -> Constraint | None:
    form = body.text.format if body.text is not None else None
    if isinstance(form, JsonSchema):
        return Constraint.json_schema(form.form)
    return Constraint.json_object() if isinstance(form, JsonObjectFormat) else None
