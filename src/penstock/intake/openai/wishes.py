"""The optional things a client wants in an answer, of chat and of plain completions alike."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from penstock.flow import Completion, FinishReason, TokenLogprobs
from penstock.intake.openai.answers import PromptTokensDetails, Timings, TokenLogprob, Usage, timings, usage
from penstock.intake.openai.logprobs import Vocabulary, per_token
from penstock.intake.openai.schemas import Generation

# Their last token ended the answer; it is not part of it.
_BY_TOKEN = (FinishReason.END, FinishReason.STOP_TOKEN)


class Wishes:
    """What was not asked for is UNSET, and so left out."""

    def __init__(self, body: Generation, vocabulary: Vocabulary) -> None:
        options = body.stream_options
        self.stream_usage = options is not None and bool(options.include_usage)
        self.token_ids = bool(body.return_token_ids)
        self.timings_wanted = bool(body.include_timings)
        self.prompt_logprobs_wanted = body.prompt_logprobs is not None
        self.as_ids = bool(body.return_tokens_as_token_ids)
        self.skip_special = body.skip_special_tokens is not False
        self.include_stop = bool(body.include_stop_str_in_output)
        self.vocabulary = vocabulary
        # Of every chunk but the last: OpenAI writes null if the last is to have it.
        self.chunk_usage: Usage | UnsetType | None = None if self.stream_usage else UNSET
        self._running = RunningUsage() if options is not None and options.continuous_usage_stats else None

    @property
    def text_only(self) -> bool:
        """Chunks of a stream are to tell nothing but text."""
        return not self.token_ids and self._running is None

    def begun(self, prompt: int, prompt_tokens: int, cached_tokens: int) -> None:
        """A choice of this prompt has begun."""
        if self._running is not None:
            self.chunk_usage = self._running.begun(prompt, prompt_tokens, cached_tokens)

    def went_on(self, output_tokens: int) -> None:
        if self._running is not None:
            self.chunk_usage = self._running.went_on(output_tokens)

    def ids(self, tokens: list[int]) -> list[int] | UnsetType:
        return tokens if self.token_ids else UNSET

    def usage(self, completions: Sequence[Completion]) -> Usage | UnsetType | None:
        """For the last chunk of a stream; a whole answer always has it."""
        return usage(completions) if self.stream_usage else self.chunk_usage

    def timings(self, completions: Sequence[Completion]) -> Timings | UnsetType:
        return timings(completions) if self.timings_wanted else UNSET

    def logprobs(self, entries: list[TokenLogprobs] | None, finish: FinishReason | None) -> list[TokenLogprobs] | None:
        """Those of the tokens that are part of the answer. The token that ended it is among them if it is shown, as an
        id or in the text."""
        shown = self.token_ids or self.include_stop
        return entries[:-1] if entries and finish in _BY_TOKEN and not shown else entries

    def prompt_logprobs(self, completion: Completion) -> list[TokenLogprob | None] | UnsetType:
        if not self.prompt_logprobs_wanted or completion.prompt_logprobs is None:
            return UNSET
        entries, vocabulary, as_ids = completion.prompt_logprobs, self.vocabulary, self.as_ids
        return [None if entry is None else per_token(entry, vocabulary, as_ids=as_ids) for entry in entries]


class RunningUsage:
    """What a stream has used so far, all its prompts and choices together (`continuous_usage_stats`)."""

    def __init__(self) -> None:
        self._prompts: set[int] = set()
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0

    def begun(self, prompt: int, prompt_tokens: int, cached_tokens: int) -> Usage:
        """A prompt counts once, however many choices it has."""
        if prompt not in self._prompts:
            self._prompts.add(prompt)
            self._prompt_tokens += prompt_tokens
            self._cached_tokens += cached_tokens
        return self._usage()

    def went_on(self, output_tokens: int) -> Usage:
        self._output_tokens += output_tokens
        return self._usage()

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._output_tokens,
            total_tokens=self._prompt_tokens + self._output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._cached_tokens),
        )
