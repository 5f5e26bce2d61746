"""Optional parts of a response: usage, timings, token ids, logprobs. Shared by chat and completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from penstock.flow import Completion, FinishReason, TokenLogprobs
from penstock.flow.protocols import Vocabulary
from penstock.http.api.logprobs import TokenLogprob, token_logprob
from penstock.http.api.openai.response_bodies import (
    Timings,
    Usage,
    usage,
)
from penstock.http.api.openai.schemas import GenerationFields
from penstock.http.api.openai.timings import RunningUsage, final_timings

# The last token ended the output and is not part of it.
_BY_TOKEN = (FinishReason.END, FinishReason.STOP_TOKEN)


class ResponseOptions:
    """Parts that are not requested are UNSET, and so left out."""

    def __init__(self, body: GenerationFields, vocabulary: Vocabulary) -> None:
        options = body.stream_options
        self.stream_usage = options is not None and bool(options.include_usage)
        self.token_ids = bool(body.return_token_ids)
        self.include_timings = bool(body.include_timings)
        self.timings_per_token = bool(body.timings_per_token)
        self.include_prompt_logprobs = body.prompt_logprobs is not None
        self.as_ids = bool(body.return_tokens_as_token_ids)
        self.skip_special = body.skip_special_tokens is not False
        self.include_stop = bool(body.include_stop_str_in_output)
        self.vocabulary = vocabulary
        # In all chunks but the last: null if the last has it.
        self.chunk_usage: Usage | UnsetType | None = None if self.stream_usage else UNSET
        self.chunk_timings: Timings | UnsetType = UNSET
        self._continuous_usage = options is not None and bool(options.continuous_usage_stats)
        self._running = RunningUsage() if self._continuous_usage or self.timings_per_token else None

    @property
    def text_only(self) -> bool:
        """Whether chunks of a stream have only text."""
        return not self.token_ids and self._running is None

    def start_prompt(self, prompt: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Counts the prompt of a choice that starts."""
        if self._running is not None:
            self._running.start_prompt(prompt, prompt_tokens, cached_tokens)
            self._update(self._running)

    def add_output(self, output_tokens: int) -> None:
        if self._running is not None:
            self._running.add_output(output_tokens)
            self._update(self._running)

    def _update(self, running: RunningUsage) -> None:
        if self._continuous_usage:
            self.chunk_usage = running.usage()
        if self.timings_per_token:
            self.chunk_timings = running.timings()

    def ids(self, tokens: list[int]) -> list[int] | UnsetType:
        return tokens if self.token_ids else UNSET

    def usage(self, completions: Sequence[Completion]) -> Usage | UnsetType | None:
        """For the last chunk of a stream; a whole response always has it."""
        return usage(completions) if self.stream_usage else self.chunk_usage

    def timings(self, completions: Sequence[Completion]) -> Timings | UnsetType:
        """Of a whole response, or for the last chunk of a stream."""
        seconds, per_token = self.include_timings, self.timings_per_token
        return final_timings(completions, seconds=seconds, per_token=per_token) if seconds or per_token else UNSET

    def logprobs(self, entries: list[TokenLogprobs] | None, finish: FinishReason | None) -> list[TokenLogprobs] | None:
        """Those of the output's tokens, including the one that ended it if that is shown, as an id or in the text."""
        shown = self.token_ids or self.include_stop
        return entries[:-1] if entries and finish in _BY_TOKEN and not shown else entries

    def prompt_logprobs(self, completion: Completion) -> list[TokenLogprob | None] | UnsetType:
        if not self.include_prompt_logprobs or completion.prompt_logprobs is None:
            return UNSET
        entries, vocabulary, as_ids = completion.prompt_logprobs, self.vocabulary, self.as_ids
        return [None if entry is None else token_logprob(entry, vocabulary, as_ids=as_ids) for entry in entries]
