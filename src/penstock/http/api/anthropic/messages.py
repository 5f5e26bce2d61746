"""POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from pydantic import BaseModel

from penstock.deployment.protocol import PromptCount
from penstock.errors import InvalidRequest
from penstock.flow import (
    CallDelta,
    Chunk,
    Completion,
    Constraint,
    Request,
    SamplingParams,
    Tool,
    ToolUse,
    Vocabulary,
)
from penstock.http.api.anthropic import response_bodies
from penstock.http.api.anthropic.error_body import AnthropicErrorBody
from penstock.http.api.anthropic.response_bodies import (
    Content,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    TokenCount,
    ToolUseContent,
)
from penstock.http.api.anthropic.schemas import (
    ChooseAny,
    ChooseNone,
    ChooseTool,
    ClearToolUses,
    CountTokensRequest,
    MessagesRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkFreely,
    ThinkingBlock,
    ThinkNot,
    ThinkWithin,
    ToolResultBlock,
    ToolUseBlock,
)
from penstock.http.api.conversation import ConversationBuilder
from penstock.http.api.fields import join_text
from penstock.http.api.recommended_sampling import merge_recommended
from penstock.http.error_body import RenderedError
from penstock.http.sse import Event, NamedEvent, tagged_event
from penstock.prompt.reasoning import SWITCHES

REQUEST = MessagesRequest
RESPONSE = MessageAnswer
EVENTS = response_bodies.EVENTS
COUNT = CountTokensRequest
COUNTED = TokenCount

# For /openapi.json.
REQUESTS: tuple[type[BaseModel], ...] = (REQUEST, COUNT)
ANSWERS: tuple[type[msgspec.Struct], ...] = (RESPONSE, COUNTED, *EVENTS, AnthropicErrorBody)


# Template variables that set the amount of thinking.
_THINKING_VARIABLES = frozenset(("reasoning_effort", *SWITCHES))
_BUDGET = "thinking_budget"
# Claude Code's first system block: accounting data that differs in every request, so that the prefix cache would never
# hit with it in the prompt.
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")

_encode = msgspec.json.Encoder().encode


def to_request(
    body: MessagesRequest, *, request_id: str, recommended: Mapping[str, float | int], variables: Collection[str]
) -> Request:
    """`recommended` is ModelFiles.sampling, `variables` those of the model's chat template. Raises InvalidRequest for
    what the schema cannot check."""
    requested = {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k}
    requested["speculation"] = body.speculation
    params = SamplingParams(
        **merge_recommended(recommended, requested),
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences or ()),
        constraint=_constraint(body),
    )
    return msgspec.structs.replace(_request(body, request_id, params, variables), **body.assembly())


def client_names(body: CountTokensRequest) -> dict[str, str]:
    """For `client_field_names`."""
    return {
        "continue_final_message": "messages",
        "reasoning_effort": "thinking" if _effort(body) is None else "output_config.effort",
        "constraint.json_schema": "output_config.format.schema",
        ".function.parameters": ".input_schema",
        "thinking_budget": "thinking.budget_tokens",
    }


def to_count(body: CountTokensRequest, *, variables: Collection[str]) -> Request:
    return _request(body, "", SamplingParams(), variables)


def _request(body: CountTokensRequest, request_id: str, params: SamplingParams, variables: Collection[str]) -> Request:
    turns = _turns(body)
    last = turns.messages[-1]
    continues = last["role"] == "assistant"
    if "tool_calls" in last:
        place = f"messages[{len(body.messages) - 1}]"
        raise InvalidRequest(f"{place} calls tools: send their results after it", param=place)
    return Request(
        id=request_id,
        params=params,
        messages=turns.messages,
        continue_final_message=continues,
        add_generation_prompt=not continues,
        tools=_tools(body),
        warnings=_warnings(body, variables),
        **_thinking(body, variables),
    )


def _turns(body: CountTokensRequest) -> ConversationBuilder:
    turns = ConversationBuilder()
    if system := _system(body.system or ""):
        turns.add_text("system", system)
    for place, message in enumerate(body.messages):
        content = message.content
        if isinstance(content, str):
            turns.add_text(message.role, content)
            continue
        if not content or message.role == "assistant":  # which may be empty
            turns.begin_turn(message.role)
        for number, block in enumerate(content):
            _add(turns, message.role, block, f"messages[{place}].content[{number}]")
    return turns


def _system(given: str | list[TextBlock]) -> str:
    texts = [given] if isinstance(given, str) else [block.text for block in given]
    stripped = [(text, _BILLING.sub("", text, count=1) if _BILLING.match(text) else text) for text in texts]
    return "\n".join([rest for text, rest in stripped if rest or not text])


def _add(
    turns: ConversationBuilder,
    role: str,
    block: TextBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock,
    place: str,
) -> None:
    match block:
        case TextBlock():
            turns.add_text(role, block.text)
        case ThinkingBlock():
            turns.add_reasoning(block.thinking)
        case ToolUseBlock():
            turns.add_tool_call(block.id, block.name, block.input)
        case ToolResultBlock():
            text = join_text(block.content or "")
            turns.add_tool_result(
                block.tool_use_id, f"Error: {text}" if block.is_error else text, param=f"{place}.tool_use_id"
            )


def _tools(body: CountTokensRequest) -> ToolUse | None:
    choice = body.tool_choice
    if not body.tools or isinstance(choice, ChooseNone):
        return None
    tools = [
        Tool(
            name=tool.name,
            description=tool.description or "",
            parameters=tool.input_schema,
            strict=bool(tool.strict),
        )
        for tool in body.tools
    ]
    return ToolUse(
        tools=tuple(tools),
        choice="required" if isinstance(choice, ChooseAny) else "named" if isinstance(choice, ChooseTool) else "auto",
        name=choice.name if isinstance(choice, ChooseTool) else None,
        parallel=choice is None or not choice.disable_parallel_tool_use,
    )


def _thinking(body: CountTokensRequest, variables: Collection[str]) -> dict[str, Any]:
    """Fields of flow.Request for thinking. The pipeline rejects what the template does not support."""
    effort = _effort(body)
    has_switch = not _THINKING_VARIABLES.isdisjoint(variables)
    match body.thinking:
        case ThinkNot():
            return {"reasoning_effort": "none"}
        case ThinkFreely():
            return {"reasoning_effort": (effort or "medium") if has_switch else None}
        case ThinkWithin(budget_tokens=budget):
            effort_field = {"reasoning_effort": effort or "medium"} if has_switch else {}
            hint = {"template_arguments": {_BUDGET: budget}} if _BUDGET in variables else {}
            return {**effort_field, **hint, "thinking_budget": budget}
    return {"reasoning_effort": effort}


def _effort(body: CountTokensRequest) -> str | None:
    return body.output_config.effort if body.output_config is not None else None


def _warnings(body: CountTokensRequest, variables: Collection[str]) -> tuple[str, ...]:
    """What is accepted without effect."""
    blocks = [block for turn in body.messages if isinstance(turn.content, list) for block in turn.content]
    edits = body.context_management.edits or () if body.context_management is not None else ()
    conditions = {
        "output_config.effort has no effect: this model's chat template has no say in how much it reasons": (
            isinstance(body.thinking, ThinkFreely)
            and _effort(body) is not None
            and _THINKING_VARIABLES.isdisjoint(variables)
        ),
        "context_management has no effect: the conversation stays as it was sent": any(
            isinstance(edit, ClearToolUses) or edit.keep not in ("all", {"type": "all"}) for edit in edits
        ),
        "defer_loading has no effect: all tools are shown to the model": any(
            tool.defer_loading for tool in body.tools or ()
        ),
        "redacted_thinking is left out: only the server that wrote it can read it": any(
            isinstance(block, RedactedThinkingBlock) for block in blocks
        ),
    }
    return tuple(text for text, applies in conditions.items() if applies)


def _constraint(body: CountTokensRequest) -> Constraint | None:
    if body.output_config is None or body.output_config.format is None:
        return None
    return Constraint.json_schema(body.output_config.format.json_schema)


def encode_token_count(counted: PromptCount) -> bytes:
    return _encode(TokenCount(input_tokens=counted.num_tokens, estimated=counted.estimated or UNSET))


class MessageWriter:
    """Writes the response to one request as JSON. A stream is `first`, then `chunk` for each chunk, then `last`; each
    content block is framed by a start and a stop event."""

    end: Sequence[Event] = ()

    def __init__(self, *, request_id: str, model: str) -> None:
        self._id = f"msg_{request_id}"
        self._model = model
        self._index = -1  # of the last block
        self._open: type[Content] | None = None  # its type, until it is complete

    def answer_as(self, model: str, vocabulary: Vocabulary) -> None:
        self._model = model

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[Event]:
        message = MessageAnswer(
            id=self._id,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=response_bodies.usage(len(prompt_tokens), cached_tokens, 0),
        )
        return [tagged_event(MessageStart(message=message)), tagged_event(Ping())]

    def chunk(self, prompt: int, chunk: Chunk) -> list[Event]:
        events: list[Event] = []
        if chunk.reasoning:
            events += self._block_delta(ThinkingContent(thinking=""), ThinkingDelta(thinking=chunk.reasoning))
        if chunk.text:
            events += self._block_delta(TextContent(text=""), TextDelta(text=chunk.text))
        for call in chunk.calls:
            events += self._call(call)
        return events

    def last(self, completions: Sequence[Completion]) -> list[Event]:
        (completion,) = completions
        end = MessageDelta(
            delta=response_bodies.stop_details(completion.choices[0]),
            usage=response_bodies.whole_usage(completion),
            context=completion.context or UNSET,
        )
        return [*self._close(), tagged_event(end), tagged_event(MessageStop())]

    def text_event(self, prompt: int, choice: int) -> None:
        return None

    def error_events(self, error: RenderedError) -> list[Event]:
        return [NamedEvent("error", error.body)]

    def full_response(self, completions: Sequence[Completion]) -> bytes:
        """The whole response, of a completion that did not fail."""
        (completion,) = completions
        (choice,) = completion.choices
        stopped = response_bodies.stop_details(choice)
        return _encode(
            MessageAnswer(
                id=self._id,
                model=self._model,
                content=response_bodies.content(choice),
                stop_reason=stopped.stop_reason,
                stop_sequence=stopped.stop_sequence,
                usage=response_bodies.whole_usage(completion),
                context=completion.context or UNSET,
            )
        )

    def _call(self, call: CallDelta) -> list[Event]:
        events: list[Event] = []
        if call.id is not None:
            block = ToolUseContent(id=call.id, name=call.name or "", input=msgspec.Raw(b"{}"))
            events += self._begin(block)
        if call.arguments:
            events.append(self._delta(InputJsonDelta(partial_json=call.arguments)))
        return events

    def _block_delta(self, block: Content, delta: TextDelta | ThinkingDelta) -> list[Event]:
        """The delta, after the start of a new block if a block of another type is open."""
        opening = self._begin(block) if self._open is not type(block) else []
        return [*opening, self._delta(delta)]

    def _begin(self, block: Content) -> list[Event]:
        closing = self._close()
        self._open = type(block)
        self._index += 1
        return [*closing, tagged_event(ContentBlockStart(index=self._index, content_block=block))]

    def _delta(self, delta: Any) -> Event:
        return tagged_event(ContentBlockDelta(index=self._index, delta=delta))

    def _close(self) -> list[Event]:
        if self._open is None:
            return []
        self._open = None
        return [tagged_event(ContentBlockStop(index=self._index))]
