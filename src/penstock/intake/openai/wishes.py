"""The optional things a client wants in an answer, of chat and of plain completions alike."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from penstock.flow import Completion, FinishReason, TokenLogprobs
from penstock.intake.openai.answers import Timings, TokenLogprob, Usage, timings, usage
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
        self.vocabulary = vocabulary
        # On every chunk but the last, OpenAI writes null if the last is to have it.
        self.no_usage: UnsetType | None = None if self.stream_usage else UNSET

    def ids(self, tokens: list[int]) -> list[int] | UnsetType:
        return tokens if self.token_ids else UNSET

    def usage(self, completions: Sequence[Completion]) -> Usage | UnsetType | None:
        """For the last chunk of a stream; a whole answer always has it."""
        return usage(completions) if self.stream_usage else self.no_usage

    def timings(self, completions: Sequence[Completion]) -> Timings | UnsetType:
        return timings(completions) if self.timings_wanted else UNSET

    def logprobs(self, entries: list[TokenLogprobs] | None, finish: FinishReason | None) -> list[TokenLogprobs] | None:
        """Those of the tokens that are part of the answer. With token ids, the token that ended it is among them."""
        return entries[:-1] if entries and finish in _BY_TOKEN and not self.token_ids else entries

    def prompt_logprobs(self, completion: Completion) -> list[TokenLogprob | None] | UnsetType:
        if not self.prompt_logprobs_wanted or completion.prompt_logprobs is None:
            return UNSET
        return [None if entry is None else per_token(entry, self.vocabulary) for entry in completion.prompt_logprobs]
