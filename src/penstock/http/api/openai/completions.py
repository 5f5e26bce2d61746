"""POST /v1/completions. Each prompt is a flow.Request; the response has the choices of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType

from penstock.flow import Choice, Chunk, Completion, Request, TokenLogprobs
from penstock.flow.protocols import Vocabulary
from penstock.http.api.openai.logprobs import (
    TextLogprobsWriter,
    concatenate,
    prompt_logprob_lists,
)
from penstock.http.api.openai.prompts import single_prompts
from penstock.http.api.openai.response_bodies import (
    FINISH,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Timings,
    Usage,
    usage,
)
from penstock.http.api.openai.response_options import ResponseOptions
from penstock.http.api.openai.sampling import sampling_params
from penstock.http.api.openai.schemas import CompletionRequest
from penstock.http.sse import Plain, TextEvent

REQUEST = CompletionRequest
RESPONSE = CHUNK = TextCompletion

DEFAULT_MAX_TOKENS = 16

_encode = msgspec.json.Encoder().encode


def to_requests(body: CompletionRequest, *, request_id: str, recommended: Mapping[str, float | int]) -> list[Request]:
    """One for each prompt, in order. `recommended` is ModelFiles.sampling.

    Raises InvalidRequest for what the schema cannot check.
    """
    counts = [body.prompt_logprobs, body.logprobs if body.echo else None]
    params = sampling_params(
        body,
        recommended,
        max_tokens=DEFAULT_MAX_TOKENS if body.token_limit is None else body.token_limit,
        logprobs=body.logprobs,
        prompt_logprobs=max((count for count in counts if count is not None), default=None),
    )
    prompts = single_prompts(body.prompt)
    return [
        Request(
            id=request_id if len(prompts) == 1 else f"{request_id}-{place}",
            params=params,
            text=prompt if isinstance(prompt, str) else None,
            tokens=None if isinstance(prompt, str) else prompt,
            priority=body.priority or 0,
            salt=body.cache_salt or "",
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            shows_token_ids=body.shows_token_ids or bool(body.echo and body.logprobs is not None),
        )
        for place, prompt in enumerate(prompts)
    ]


@dataclass(slots=True)
class PromptEcho:
    """An echoed prompt with its log-probabilities."""

    text: str
    tokens: list[int]
    known: bool = False  # whether `lists` is final
    lists: TextLogprobs | None = None
    waiting: list[int] = field(default_factory=list)  # choices that have started
    held: list[Chunk] = field(default_factory=list)


class CompletionWriter(Plain):
    """Writes the response to one request as JSON. A stream is `first` for each choice of each prompt, then `chunk` for
    each chunk, then `last`. Choices are numbered through: those of the first prompt, then those of the second."""

    def __init__(
        self, body: CompletionRequest, *, request_id: str, model: str, created: int, vocabulary: Vocabulary
    ) -> None:
        """`created` is in seconds since 1970."""
        self._id = f"cmpl-{request_id}"
        self._model = model
        self._created = created
        self._vocabulary = vocabulary
        self._options = ResponseOptions(body, vocabulary)
        self._prompts = single_prompts(body.prompt)
        self._choices_per_prompt = body.n or 1
        self._echo = bool(body.echo)
        self._truncation = body.truncate_prompt_tokens
        self._k = body.logprobs
        self._every_token = body.logprobs is not None or bool(body.return_token_ids)
        self._logprobs: dict[int, TextLogprobsWriter] = {}  # by choice, of a stream
        self._text_only = self._options.text_only and body.logprobs is None
        self._texts: dict[int, TextEvent] = {}  # by choice
        # For a stream that echoes prompts with their log-probabilities: these come with the first token of choice 0,
        # and until then the choices of the prompt wait.
        self._echoes: dict[int, PromptEcho] = {}
        self._scores_echo = self._echo and self._k is not None

    def answer_as(self, model: str, vocabulary: Vocabulary) -> None:
        self._model, self._vocabulary, self._options.vocabulary = model, vocabulary, vocabulary

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[bytes]:
        """The echo, if it is requested and complete."""
        self._options.start_prompt(prompt, len(prompt_tokens), cached_tokens)
        text = self._echo_text(prompt, prompt_tokens)
        index = self._index(prompt, choice)
        if self._k is not None:
            self._logprobs[index] = self._lists_writer(prompt_tokens, len(text))
        if self._scores_echo:
            echo = self._echoes.setdefault(prompt, PromptEcho(text, prompt_tokens))
            if not echo.known:
                echo.waiting.append(choice)
                return []
            return [self._echo_chunk(index, text, prompt_tokens, echo.lists)]
        return [self._echo_chunk(index, text, prompt_tokens)] if text or self._options.token_ids else []

    def chunk(self, prompt: int, chunk: Chunk) -> list[bytes]:
        """Empty if there is nothing to show yet. Of a failed sequence only the text: an error event follows."""
        if self._text_only and chunk.text and chunk.finish is None:
            return [self._text_event(self._index(prompt, chunk.choice)).holding(chunk.text)]
        if not self._scores_echo or (echo := self._echoes[prompt]).known:
            return self._chunk(prompt, chunk)
        echo.held.append(chunk)
        # Choice 0 may end without a token, and so without the prompt's log-probabilities.
        if chunk.prompt_logprobs is None and not (chunk.choice == 0 and chunk.finish is not None):
            return []
        echo.known = True
        if chunk.prompt_logprobs is not None:
            echo.lists = self._prompt_lists(echo.text, echo.tokens, chunk.prompt_logprobs)
        indices = [self._index(prompt, choice) for choice in echo.waiting]
        events = [self._echo_chunk(index, echo.text, echo.tokens, echo.lists) for index in indices]
        for held in echo.held:
            events += self._chunk(prompt, held)
        echo.held.clear()
        return events

    def _chunk(self, prompt: int, chunk: Chunk) -> list[bytes]:
        reason = FINISH.get(chunk.finish)
        self._options.add_output(len(chunk.tokens) + chunk.hidden_tokens)
        if not (chunk.text or reason or (self._every_token and chunk.tokens)):
            return []
        index = self._index(prompt, chunk.choice)
        entries = self._options.logprobs(chunk.logprobs, chunk.finish)
        choice = TextChoice(
            text=chunk.text,
            index=index,
            logprobs=None if entries is None else self._logprobs[index].push(entries, self._k or 0),
            finish_reason=reason,
            stop_reason=UNSET if chunk.stop is None else chunk.stop,
            token_ids=self._options.ids(chunk.tokens),
        )
        return [self._body([choice])]

    def text_event(self, prompt: int, choice: int) -> TextEvent | None:
        return self._text_event(self._index(prompt, choice)) if self._text_only else None

    def _text_event(self, index: int) -> TextEvent:
        """Most chunks are only text."""
        if (known := self._texts.get(index)) is None:
            known = self._texts[index] = TextEvent(lambda text: self._body([TextChoice(text=text, index=index)]))
        return known

    def last(self, completions: Sequence[Completion]) -> list[bytes]:
        """After all choices: usage and timings of the request, if requested."""
        options = self._options
        if not (options.stream_usage or options.include_timings):
            return []
        return [self._body([], usage=options.usage(completions), timings=options.timings(completions))]

    def full_response(self, completions: Sequence[Completion]) -> bytes:
        """The whole response, of completions that did not fail, one per prompt."""
        choices = [
            self._choice(prompt, completion, choice)
            for prompt, completion in enumerate(completions)
            for choice in completion.choices
        ]
        return self._body(choices, usage=usage(completions), timings=self._options.timings(completions))

    def _choice(self, prompt: int, completion: Completion, choice: Choice) -> TextChoice:
        echoed = self._echo_text(prompt, completion.prompt_tokens)
        return TextChoice(
            text=echoed + choice.text,
            index=self._index(prompt, choice.index),
            logprobs=self._lists(completion, choice, echoed),
            finish_reason=FINISH[choice.finish],
            stop_reason=UNSET if choice.stop is None else choice.stop,
            token_ids=self._options.ids(choice.tokens),
            prompt_token_ids=self._options.ids(completion.prompt_tokens),
            prompt_logprobs=self._options.prompt_logprobs(completion),
        )

    def _lists(self, completion: Completion, choice: Choice, echoed: str) -> TextLogprobs | None:
        entries = self._options.logprobs(choice.logprobs, choice.finish)
        if entries is None or self._k is None:
            return None
        tokens = completion.prompt_tokens
        lists = self._lists_writer(tokens, len(echoed)).push(entries, self._k)
        if not self._echo or completion.prompt_logprobs is None:
            return lists
        return concatenate(self._prompt_lists(echoed, tokens, completion.prompt_logprobs), lists)

    def _prompt_lists(self, echoed: str, tokens: list[int], entries: Sequence[TokenLogprobs | None]) -> TextLogprobs:
        return prompt_logprob_lists(
            echoed, tokens, entries, self._k or 0, self._vocabulary, as_ids=self._options.as_ids
        )

    def _lists_writer(self, prompt_tokens: list[int], offset: int) -> TextLogprobsWriter:
        options = self._options
        return TextLogprobsWriter(
            self._vocabulary, prompt_tokens, offset, as_ids=options.as_ids, skip_special=options.skip_special
        )

    def _index(self, prompt: int, choice: int) -> int:
        return prompt * self._choices_per_prompt + choice

    def _echo_text(self, prompt: int, tokens: list[int]) -> str:
        """The prompt as it was sent; token ids and a truncated prompt as their text."""
        if not self._echo:
            return ""
        given = self._prompts[prompt]
        if isinstance(given, str) and self._truncation is None:
            return given
        text = self._vocabulary.decode(tokens, skip_special=False)
        return given if isinstance(given, str) and text.endswith(given) else text

    def _echo_chunk(self, index: int, text: str, tokens: list[int], lists: TextLogprobs | None = None) -> bytes:
        ids = self._options.ids(tokens)
        return self._body([TextChoice(text=text, index=index, logprobs=lists, prompt_token_ids=ids)])

    def _body(
        self,
        choices: list[TextChoice],
        *,
        usage: Usage | UnsetType | None = UNSET,
        timings: Timings | UnsetType = UNSET,
    ) -> bytes:
        return _encode(
            TextCompletion(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage or self._options.chunk_usage,
                timings=timings or self._options.chunk_timings,
            )
        )
