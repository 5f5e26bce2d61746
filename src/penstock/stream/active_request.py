"""One request under way: the Submits that go to an engine, and what becomes of the Deltas that come back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.errors import by_code
from penstock.flow import Cancel, Chunk, Completion, Delta, FinishReason, Inspection, Submit, TokenLogprobs
from penstock.flow.context import ContextTrace
from penstock.stream.choice import ChoiceStream
from penstock.stream.output_filter import ChoiceFilter, OutputFilter

logger = logging.getLogger(__name__)

_ENDED_BY_TEXT = (FinishReason.STOP_STRING, FinishReason.CONTENT_FILTER)  # which the engine does not know


class ShortWay(Protocol):
    """Takes single tokens of text without a Delta."""

    def push_token(self, token: int) -> str | None:
        """The text to show, which may be empty. None, with nothing changed: the token needs `ActiveRequest.push`."""


class ActiveRequest:
    """One request under way: its sequences out, its answers coming in."""

    def __init__(
        self,
        request_id: str,
        submits: list[Submit],
        make_choice: Callable[[int], ChoiceStream],
        warnings: tuple[str, ...] = (),
    ) -> None:
        """`make_choice` makes the ChoiceStream of a choice, once for each submit, and again if it restarts."""
        self.id = request_id
        self.warnings = warnings  # what of the request was accepted without effect
        self.submits = submits
        self.choices = [make_choice(submit.choice) for submit in submits]
        self.cached_tokens = 0
        self.found_tokens = 0  # of the prompt, in the cache of the engine that answers
        # What of those counts as cached; None: all. The rest was computed for this request, by another engine.
        self.cached_limit: int | None = None
        self.usage_estimated = False  # token counts are an estimate: an upstream reported none
        self.cost_usd: float | None = None  # of the whole HTTP request, once it is known; None: there is no price
        self.context: ContextTrace | None = None  # how its prompt was assembled
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._embedding: bytes | None = None
        self.inspection: Inspection | None = None
        self.error: tuple[str, str | None] | None = None  # message, code
        self._make_choice = make_choice
        self._filters: dict[int, OutputFilter] | None = None  # by choice; None: everything is shown
        self._by_id = {submit.id: answer for submit, answer in zip(submits, self.choices, strict=True)}

    @property
    def done(self) -> bool:
        """The engine has let go of every sequence."""
        return all(answer.done for answer in self.choices)

    @property
    def has_begun(self) -> bool:
        """Whether its prompt was computed, or part of it, as far as is known: once the engine has let go of it."""
        return any(
            choice.output_tokens or (choice.timings is not None and choice.timings.admitted is not None)
            for choice in self.choices
        )

    def push(self, delta: Delta) -> tuple[Chunk | None, Cancel | None]:
        """What this news means for the client, and for the engine."""
        answer = self._by_id[delta.id]
        if delta.finish is not None or not answer.tokens:
            self._note(answer, delta)
        try:
            chunk = answer.push(delta)
        except Exception:  # of one answer, which is not to take others along
            logger.exception("the answer of request %s could not be read", self.id)
            answer.fail()
            self.error = self.error or ("what the model wrote could not be read", None)
            return None, None if answer.done else Cancel(delta.id, at_output=answer.output_tokens)
        if chunk is not None and delta.prompt_logprobs is not None:
            chunk = msgspec.structs.replace(chunk, prompt_logprobs=self.prompt_logprobs)
        if self._filters is not None and chunk is not None:
            chunk = self.shown(chunk)
        if answer.finish in _ENDED_BY_TEXT and not answer.done:
            return chunk, Cancel(delta.id, answer.finish, at_output=answer.output_tokens)
        return chunk, None

    def filter_output(self, make_filter: Callable[[], ChoiceFilter]) -> None:
        """Have the rules of `make_filter` decide what of each choice is shown. Before it is submitted."""
        filters: dict[int, OutputFilter] = {}

        def make_choice(index: int) -> ChoiceStream:  # refers to no request: the garbage collector need not find it
            choice = unfiltered(index)
            filters[index] = OutputFilter(choice, make_filter())
            return choice

        unfiltered, self._make_choice, self._filters = self._make_choice, make_choice, filters
        for choice in self.choices:
            filters[choice.index] = OutputFilter(choice, make_filter())

    def shown(self, chunk: Chunk) -> Chunk | None:
        """What the rules let through of a chunk that its choice has taken."""
        if self._filters is None:
            return chunk
        return self._filters[chunk.choice].push(chunk, settled=self.choices[chunk.choice].settled)

    def short_way(self, choice: int) -> ShortWay:
        """Of the single tokens of a choice."""
        return self.choices[choice] if self._filters is None else self._filters[choice]

    def _note(self, answer: ChoiceStream, delta: Delta) -> None:
        """What only the first news of a sequence and the last have beside tokens."""
        if answer.index == 0:
            self.found_tokens = max(self.found_tokens, delta.cached_tokens)
            limit = self.found_tokens if self.cached_limit is None else self.cached_limit
            self.cached_tokens = min(self.found_tokens, limit)
        if delta.prompt_logprobs is not None:
            entries = delta.prompt_logprobs
            if self._filters is not None:  # alternatives are output, too
                entries = [msgspec.structs.replace(entry, top=[]) for entry in entries]
            self.prompt_logprobs = [None, *entries]
        if delta.embedding is not None:
            self._embedding = delta.embedding
        if delta.inspection is not None:
            self.inspection = delta.inspection
        if delta.finish is FinishReason.ERROR and answer.finish is None and self.error is None:
            self.error = (delta.error or "the engine failed", delta.code)

    def restart(self, name: str) -> ChoiceStream:
        """Forget the output of a sequence that has not ended: it is computed again. Returns its new ChoiceStream."""
        place = next(place for place, submit in enumerate(self.submits) if submit.id == name)
        if self.choices[place].output_tokens:
            self.choices[place] = self._by_id[name] = self._make_choice(self.submits[place].choice)
        return self.choices[place]

    def cancels(self) -> list[Cancel]:
        """What ends the sequences that still run, when the client has gone."""
        return [
            Cancel(submit.id, at_output=answer.output_tokens)
            for submit, answer in zip(self.submits, self.choices, strict=True)
            if not answer.done
        ]

    def completion(self) -> Completion:
        message, code = self.error or (None, None)
        return Completion(
            id=self.id,
            prompt_tokens=self.submits[0].tokens,
            choices=[answer.choice() for answer in self.choices],
            cached_tokens=self.cached_tokens,
            usage_estimated=self.usage_estimated,
            cost_usd=self.cost_usd,
            prompt_logprobs=self.prompt_logprobs,
            context=self.context,
            error=message,
            error_code=code,
            warnings=self.warnings,
        )

    def embedding(self) -> bytes:
        """The vector, as in Delta. Raises what kept it from being made."""
        if self._embedding is None:
            message, code = self.error or ("the request ended without an embedding", None)
            raise by_code(code, message)
        return self._embedding
