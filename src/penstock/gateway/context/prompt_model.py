"""Counts tokens and renders prompts with one model's tokenizer and chat template. Blocks: for threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from msgspec.structs import replace

from penstock.errors import ContextOverflow, InvalidRequest
from penstock.flow import Message, Request, SamplingParams
from penstock.pipeline import Pipeline

DEFAULT_MARKUP = 8  # tokens around a message, where the template does not tell
_PROBE: Message = {"role": "user", "content": "x"}


class PromptModel:
    """What assembly asks of a model. Of other models than local ones neither tokenizer nor template is known."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Raises InvalidRequest if the model has no tokenizer or no chat template."""
        if pipeline.tokenizer is None or pipeline.chat_format is None:
            raise InvalidRequest("context needs a model with a tokenizer and a chat template", param="context")
        self.pipeline = pipeline
        self.tokenizer = pipeline.tokenizer
        self.name = pipeline.model
        self.shows_documents = pipeline.chat_format.shows_documents

    @property
    def context(self) -> int:
        return self.pipeline.context

    @property
    def longest_text(self) -> int:
        """Characters that are counted at most: more cannot fit the context, and would take long."""
        return max(1 << 20, 8 * self.context)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text on its own."""
        return [len(tokens) for tokens in self.tokenizer.encode_batch(list(texts), add_special=False)]

    def prompt_tokens(self, request: Request) -> int | None:
        """Of the rendered prompt; None: it is too long to be counted."""
        try:
            return len(self.pipeline.tokenize(replace(request, id="")))  # without an id it leaves no events
        except ContextOverflow:
            return None

    @cached_property
    def message_markup(self) -> int:
        """Tokens that the template puts around a message, about."""
        answered = [_PROBE, {"role": "assistant", "content": "x"}, _PROBE]
        try:
            one, three = (self._tokens(messages) for messages in ([_PROBE], answered))
        except InvalidRequest:
            return DEFAULT_MARKUP
        return max((three - one) // 2 - self.count(["x"])[0], 0)

    def _tokens(self, messages: list[Message]) -> int:
        return len(self.pipeline.tokenize(Request(id="", params=SamplingParams(), messages=messages)))
