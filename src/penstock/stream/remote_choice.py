"""A choice whose output another server has parsed: pieces come as Chunks instead of tokens."""

from __future__ import annotations

from penstock.flow import Chunk, SamplingParams
from penstock.stream.choice import ChoiceStream, NoText


class RemoteChoice(ChoiceStream):
    def __init__(self, index: int, params: SamplingParams) -> None:
        super().__init__(index, params, NoText())

    def push_token(self, token: int) -> None:
        return None

    def add(self, chunk: Chunk) -> None:
        self._texts.append(chunk.text)
        self.tokens += chunk.tokens
        self._num_texts = len(self.tokens)
        self.calls += chunk.calls
        if chunk.reasoning:
            self.reasoning = [*(self.reasoning or ()), chunk.reasoning]
        if self.logprobs is not None and chunk.logprobs is not None:
            self.logprobs += chunk.logprobs
        if chunk.finish is not None:
            self.finish, self.stop, self.done = chunk.finish, chunk.stop, True

    def count(self, tokens: int, reasoning_tokens: int) -> None:
        """The server's own count of the output, once it is known. Tokens that it did not show have the id 0."""
        if self.hidden_tokens:
            self.hidden_tokens = max(tokens - len(self.tokens), 0)
        missing = tokens - self.output_tokens
        self.tokens = self.tokens + [0] * missing if missing > 0 else self.tokens[:tokens]
        self._num_texts = len(self.tokens)
        self.reasoning_tokens = reasoning_tokens
