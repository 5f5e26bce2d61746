"""From a body and what was kept of an earlier response to flow.Request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Message, Request, SamplingParams
from penstock.flow.tools import MAX_DEPTH
from penstock.intake.fields import read_arguments, whole_text
from penstock.intake.openai.formats import JsonObjectFormat
from penstock.intake.openai.responses.schemas import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    JsonSchema,
    MessageItem,
    ReasoningItem,
    ResponseRequest,
)
from penstock.intake.openai.tools import tool_use
from penstock.intake.recommended import over
from penstock.intake.turns import Turns

# What has another name behind `intake`.
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "constraint.json_schema": "text.format.schema",
    "constraint.json_object": "text.format",
    ".function.parameters": ".parameters",
}


def conversation(body: ResponseRequest, before: Sequence[Message]) -> Turns:
    """What has been said so far: `before` is what was kept of the previous response. Without the instructions."""
    turns = Turns(before)
    if isinstance(body.input, str):
        turns.say("user", body.input)
        return turns
    for place, item in enumerate(body.input):
        _add(turns, item, f"input[{place}]")
    return turns


def to_request(
    body: ResponseRequest, said: Turns, *, request_id: str, recommended: Mapping[str, float | int]
) -> Request:
    """`said` is the conversation. Raises InvalidRequest for what the schema cannot tell."""
    params = SamplingParams(
        **over(recommended, {"temperature": body.temperature, "top_p": body.top_p}),
        max_tokens=body.max_output_tokens,
        constraint=_constraint(body),
    )
    return Request(
        id=request_id,
        params=params,
        messages=_instructed(said.messages, body.instructions),
        tools=tool_use(body.tools or (), body.tool_choice, body.parallel_tool_calls),
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
    )


def _add(turns: Turns, item: Item, place: str) -> None:
    match item:
        case MessageItem():
            turns.say("system" if item.role == "developer" else item.role, whole_text(item.content))
        case ReasoningItem():
            turns.think("".join([part.text for part in item.content or ()]))
        case FunctionCallItem():
            given = read_arguments(item.arguments)
            if given is None:
                raise InvalidRequest(
                    f"{place}.arguments is not a JSON object of at most {MAX_DEPTH} levels",
                    param=f"{place}.arguments",
                )
            turns.call(item.call_id, item.name, given)
        case FunctionCallOutputItem():
            turns.result(item.call_id, whole_text(item.output), param=f"{place}.call_id")


def _instructed(messages: list[Message], instructions: str | None) -> list[Message]:
    """Templates want one system message, and that first."""
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
