"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from penstock.flow import Choice, Chunk, Completion, Request, TokenLogprobs
from penstock.intake.openai.answers import (
    FINISH,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Timings,
    Usage,
    usage,
)
from penstock.intake.openai.logprobs import Vocabulary, per_token
from penstock.intake.openai.messages import to_template
from penstock.intake.openai.sampling import sampling_params
from penstock.intake.openai.schemas import ChatCompletionRequest
from penstock.intake.openai.wishes import Wishes

REQUEST = ChatCompletionRequest
RESPONSE = ChatCompletion
CHUNK = ChatCompletionChunk

_encode = msgspec.json.Encoder().encode
_OPENING = ChatDelta(role="assistant", content="", refusal=None)
_NOTHING = ChatDelta()


def to_requests(
    body: ChatCompletionRequest, *, request_id: str, recommended: Mapping[str, float | int]
) -> list[Request]:
    """A list of one, as a conversation is one prompt. `recommended` is ModelFiles.sampling.

    Raises InvalidRequest for what the schema cannot tell.
    """
    params = sampling_params(
        body,
        recommended,
        max_tokens=body.max_completion_tokens or body.max_tokens,
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
            **body.template_options(),
        )
    ]


class ChatWriter:
    """Writes the answer to one request, as JSON texts. A stream is `first` for each choice, then the chunks as they
    come, then `last`. The only prompt is number 0."""

    def __init__(
        self, body: ChatCompletionRequest, *, request_id: str, model: str, created: int, vocabulary: Vocabulary
    ) -> None:
        """`created` is in seconds since 1970."""
        self._id = f"chatcmpl-{request_id}"
        self._model = model
        self._created = created
        self._vocabulary = vocabulary
        self._wishes = Wishes(body, vocabulary)
        self._every_token = bool(body.logprobs or body.return_token_ids)  # even those that complete no character

    def first(self, prompt: int, choice: int, prompt_tokens: list[int]) -> list[bytes]:
        ids = self._wishes.ids(prompt_tokens) if choice == 0 else UNSET
        return [self._chunk([ChatChunkChoice(index=choice, delta=_OPENING)], prompt_token_ids=ids)]

    def chunk(self, prompt: int, chunk: Chunk) -> list[bytes]:
        """Nothing if there is nothing to show yet. Of a sequence that failed, only its text: an error must follow."""
        written = []
        if chunk.text or (self._every_token and chunk.tokens):
            choice = ChatChunkChoice(
                index=chunk.choice,
                delta=ChatDelta(content=chunk.text),
                logprobs=self._logprobs(self._wishes.logprobs(chunk.logprobs, chunk.finish)),
                token_ids=self._wishes.ids(chunk.tokens),
            )
            written.append(self._chunk([choice]))
        if (reason := FINISH.get(chunk.finish)) is not None:
            stop_reason = UNSET if chunk.stop is None else chunk.stop
            end = ChatChunkChoice(index=chunk.choice, delta=_NOTHING, finish_reason=reason, stop_reason=stop_reason)
            written.append(self._chunk([end]))
        return written

    def last(self, completions: Sequence[Completion]) -> list[bytes]:
        """What comes behind all choices: what the client asked to know of the request as a whole."""
        wishes = self._wishes
        if not (wishes.stream_usage or wishes.timings_wanted):
            return []
        return [self._chunk([], usage=wishes.usage(completions), timings=wishes.timings(completions))]

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The answer in one piece, of a completion that did not fail."""
        (completion,) = completions
        return _encode(
            ChatCompletion(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[self._choice(choice) for choice in completion.choices],
                usage=usage(completions),
                prompt_token_ids=self._wishes.ids(completion.prompt_tokens),
                prompt_logprobs=self._wishes.prompt_logprobs(completion),
                timings=self._wishes.timings(completions),
            )
        )

    def _choice(self, choice: Choice) -> ChatChoice:
        return ChatChoice(
            index=choice.index,
            message=ChatMessage(content=choice.text),
            logprobs=self._logprobs(self._wishes.logprobs(choice.logprobs, choice.finish)),
            finish_reason=FINISH[choice.finish],
            stop_reason=UNSET if choice.stop is None else choice.stop,
            token_ids=self._wishes.ids(choice.tokens),
        )

    def _logprobs(self, entries: list[TokenLogprobs] | None) -> ChatLogprobs | None:
        if entries is None:
            return None
        return ChatLogprobs(content=[per_token(entry, self._vocabulary) for entry in entries])

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        *,
        usage: Usage | UnsetType | None = UNSET,
        prompt_token_ids: list[int] | UnsetType = UNSET,
        timings: Timings | UnsetType = UNSET,
    ) -> bytes:
        return _encode(
            ChatCompletionChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage or self._wishes.no_usage,
                prompt_token_ids=prompt_token_ids,
                timings=timings,
            )
        )
