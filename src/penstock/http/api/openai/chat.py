"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from penstock.flow import CallDelta, Choice, Chunk, Completion, FinishReason, Request, TokenLogprobs
from penstock.flow import DraftedStep as Step
from penstock.flow import ToolCall as Call
from penstock.flow.context import ContextTrace
from penstock.flow.protocols import Vocabulary
from penstock.http.api.chat_messages import to_template
from penstock.http.api.function_tools import tool_use
from penstock.http.api.logprobs import token_logprob
from penstock.http.api.openai import stored_completions
from penstock.http.api.openai.response_bodies import (
    FINISH,
    CalledFunction,
    CalledFunctionDelta,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    DraftedStep,
    Finish,
    Timings,
    ToolCall,
    ToolCallDelta,
    Usage,
    usage,
)
from penstock.http.api.openai.response_options import ResponseOptions
from penstock.http.api.openai.sampling import sampling_params
from penstock.http.api.openai.schemas import ChatCompletionRequest
from penstock.http.response_store import StoredResponse
from penstock.http.sse import Plain, TextEvent

REQUEST = ChatCompletionRequest
RESPONSE = ChatCompletion
CHUNK = ChatCompletionChunk

_encode = msgspec.json.Encoder().encode
_OPENING = ChatDelta(role="assistant", content="", refusal=None)
_OPENING_TO_CALL = ChatDelta(role="assistant", content=None, refusal=None)  # stays null without text
_NOTHING = ChatDelta()


def to_requests(
    body: ChatCompletionRequest, *, request_id: str, recommended: Mapping[str, float | int]
) -> list[Request]:
    """A list of one, as a conversation is one prompt. `recommended` is ModelFiles.sampling.

    Raises InvalidRequest for what the schema cannot check.
    """
    params = sampling_params(
        body,
        recommended,
        max_tokens=body.token_limit,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )
    return [
        Request(
            id=request_id,
            params=params,
            messages=to_template(body.messages),
            priority=body.priority or 0,
            salt=body.cache_salt or "",
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            tools=tool_use([tool.function for tool in body.tools or ()], body.tool_choice, body.parallel_tool_calls),
            reasoning_effort=body.reasoning_effort,
            enable_thinking=body.enable_thinking,
            thinking_budget=body.thinking_budget,
            shows_token_ids=body.shows_token_ids,
            include_drafts=bool(body.include_drafts),
            **body.template_options(),
            **body.assembly(),
        )
    ]


class ChatWriter(Plain):
    """Writes the response to one request as JSON. A stream is `first` for each choice, then `chunk` for each chunk,
    then `last`. The only prompt is number 0."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        *,
        request_id: str,
        model: str,
        created: int,
        vocabulary: Vocabulary,
        store: Callable[[str, StoredResponse], None] | None = None,
    ) -> None:
        """`created` is in seconds since 1970. `store` is called with the id of a completion that is to be stored."""
        self._id = f"chatcmpl-{request_id}"
        self._model = model
        self._created = created
        self._vocabulary = vocabulary
        self._options = ResponseOptions(body, vocabulary)
        # Also those that complete no character.
        self._every_token = bool(body.logprobs or body.return_token_ids or body.include_drafts)
        self._opening = _OPENING_TO_CALL if body.tools and body.tool_choice != "none" else _OPENING
        self._include_reasoning = body.include_reasoning is not False
        self._store = store if body.store else None
        self._metadata = body.metadata if body.store else UNSET
        self._conversation = (
            stored_completions.encode_messages(body.messages, self._id) if self._store is not None else b""
        )
        self._with_calls: set[int] = set()  # choices of a stream that have a tool call
        self._text_only = self._options.text_only and not (body.logprobs or body.include_drafts)
        self._texts: dict[int, TextEvent] = {}  # by choice

    def answer_as(self, model: str, vocabulary: Vocabulary) -> None:
        self._model, self._vocabulary, self._options.vocabulary = model, vocabulary, vocabulary

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[bytes]:
        self._options.start_prompt(prompt, len(prompt_tokens), cached_tokens)
        ids = self._options.ids(prompt_tokens) if choice == 0 else UNSET
        return [self._chunk([ChatChunkChoice(index=choice, delta=self._opening)], prompt_token_ids=ids)]

    def chunk(self, prompt: int, chunk: Chunk) -> list[bytes]:
        """Empty if there is nothing to show yet. Of a failed sequence only the text: an error event follows."""
        if self._text_only and chunk.text and not (chunk.finish or chunk.reasoning or chunk.calls):
            return [self._text_event(chunk.choice).holding(chunk.text)]
        events = []
        self._options.add_output(len(chunk.tokens) + chunk.hidden_tokens)
        deltas = _deltas(chunk, reasoning=self._include_reasoning)
        if not deltas and self._every_token and chunk.tokens:
            deltas = [ChatDelta(content="")]
        for place, delta in enumerate(deltas):
            first = place == 0  # token ids, logprobs and drafts go with the first delta only
            choice = ChatChunkChoice(
                index=chunk.choice,
                delta=delta,
                logprobs=self._logprobs(self._options.logprobs(chunk.logprobs, chunk.finish)) if first else None,
                token_ids=self._options.ids(chunk.tokens) if first else UNSET,
                drafts=self._drafts(chunk.drafts) if first else UNSET,
            )
            events.append(self._chunk([choice]))
        if chunk.calls:
            self._with_calls.add(chunk.choice)
        if (reason := _finish_reason(chunk.finish, chunk.choice in self._with_calls)) is not None:
            stop_reason = UNSET if chunk.stop is None else chunk.stop
            end = ChatChunkChoice(index=chunk.choice, delta=_NOTHING, finish_reason=reason, stop_reason=stop_reason)
            events.append(self._chunk([end]))
        return events

    def text_event(self, prompt: int, choice: int) -> TextEvent | None:
        return self._text_event(choice) if self._text_only else None

    def _text_event(self, choice: int) -> TextEvent:
        """Most chunks are only text."""
        if (known := self._texts.get(choice)) is None:
            known = self._texts[choice] = TextEvent(
                lambda text: self._chunk([ChatChunkChoice(index=choice, delta=ChatDelta(content=text))])
            )
        return known

    def last(self, completions: Sequence[Completion]) -> list[bytes]:
        """After all choices: usage and timings of the request, if requested."""
        options = self._options
        if self._store is not None:
            self.full_response(completions)
        context = self._context(completions)
        if not (options.stream_usage or options.include_timings or context is not UNSET):
            return []
        usage, timings = options.usage(completions), options.timings(completions)
        return [self._chunk([], usage=usage, timings=timings, context=context)]

    def full_response(self, completions: Sequence[Completion]) -> bytes:
        """The whole response, of a completion that did not fail."""
        (completion,) = completions
        body = _encode(
            ChatCompletion(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[self._choice(choice) for choice in completion.choices],
                usage=usage(completions),
                prompt_token_ids=self._options.ids(completion.prompt_tokens),
                metadata=self._metadata,
                prompt_logprobs=self._options.prompt_logprobs(completion),
                timings=self._options.timings(completions),
                context=self._context(completions),
            )
        )
        if self._store is not None:
            self._store(self._id, StoredResponse(body, self._conversation))
        return body

    def _context(self, completions: Sequence[Completion]) -> ContextTrace | UnsetType:
        return completions[0].context or UNSET

    def _choice(self, choice: Choice) -> ChatChoice:
        return ChatChoice(
            index=choice.index,
            message=ChatMessage(
                content=choice.text if choice.text or not choice.calls else None,
                reasoning_content=(choice.reasoning if self._include_reasoning else None) or UNSET,
                tool_calls=[_tool_call(call) for call in choice.calls] or UNSET,
            ),
            logprobs=self._logprobs(self._options.logprobs(choice.logprobs, choice.finish)),
            finish_reason=_finish_reason(choice.finish, bool(choice.calls)) or "stop",
            stop_reason=UNSET if choice.stop is None else choice.stop,
            token_ids=self._options.ids(choice.tokens),
        )

    def _drafts(self, steps: Sequence[Step]) -> list[DraftedStep] | UnsetType:
        spell = self._vocabulary.token_bytes

        def texts(tokens: list[int]) -> list[str]:
            return [spell(token).decode(errors="replace") for token in tokens]

        shown = [
            DraftedStep(drafted=texts(step.drafted), accepted=step.accepted, tokens=texts(step.tokens))
            for step in steps
        ]
        return shown or UNSET

    def _logprobs(self, entries: list[TokenLogprobs] | None) -> ChatLogprobs | None:
        if entries is None:
            return None
        options = self._options
        return ChatLogprobs(
            content=[token_logprob(entry, self._vocabulary, as_ids=options.as_ids) for entry in entries]
        )

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        *,
        usage: Usage | UnsetType | None = UNSET,
        prompt_token_ids: list[int] | UnsetType = UNSET,
        timings: Timings | UnsetType = UNSET,
        context: ContextTrace | UnsetType = UNSET,
    ) -> bytes:
        return _encode(
            ChatCompletionChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage or self._options.chunk_usage,
                prompt_token_ids=prompt_token_ids,
                timings=timings or self._options.chunk_timings,
                context=context,
            )
        )


def _deltas(chunk: Chunk, *, reasoning: bool = True) -> list[ChatDelta]:
    """The deltas of a chunk, in the order in which models generate them."""
    deltas = []
    if chunk.reasoning and reasoning:
        deltas.append(ChatDelta(reasoning_content=chunk.reasoning))
    if chunk.text:
        deltas.append(ChatDelta(content=chunk.text))
    return deltas + [ChatDelta(tool_calls=[_call_delta(piece)]) for piece in chunk.calls]


def _call_delta(piece: CallDelta) -> ToolCallDelta:
    if piece.id is None:
        return ToolCallDelta(index=piece.index, function=CalledFunctionDelta(arguments=piece.arguments))
    function = CalledFunctionDelta(name=piece.name or "", arguments=piece.arguments)
    return ToolCallDelta(index=piece.index, id=piece.id, type="function", function=function)


def _tool_call(call: Call) -> ToolCall:
    return ToolCall(id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments))


def _finish_reason(reason: FinishReason | None, called: bool) -> Finish | None:
    """None until the choice ends, and if it failed."""
    finish = FINISH.get(reason)
    return "tool_calls" if called and finish == "stop" else finish
