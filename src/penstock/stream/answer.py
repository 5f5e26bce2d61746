"""One choice on its way out: Deltas in, Chunks out, and the whole answer at the end."""

from __future__ import annotations

from penstock.flow import Choice, Chunk, Delta, FinishReason, SamplingParams, TextStream, Timings, TokenLogprobs
from penstock.stream.stops import StopMatcher

# Their last token ended the sequence; it counts as output, but its text is not part of the answer.
_BY_TOKEN = (FinishReason.END, FinishReason.STOP_TOKEN)


class Answer:
    """One choice. `finish` is set once the client has all of it, `done` once the engine has let go of it too."""

    def __init__(self, index: int, params: SamplingParams, text: TextStream) -> None:
        self.index = index
        self.decoder = text
        self.stops = StopMatcher(params.stop)
        self.parts: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.finish: FinishReason | None = None
        self.stop: str | int | None = None
        self.timings: Timings | None = None
        self.done = False

    def push(self, delta: Delta) -> Chunk | None:
        """The news for the client, if there is any. Tokens behind a stop string are surplus and dropped."""
        if delta.finish is not None:
            self.done = True
            self.timings = delta.timings
        if self.finish is not None:
            return None
        text, used = self._decode(delta)
        tokens = delta.tokens[:used]
        logprobs = delta.logprobs[:used] if delta.logprobs is not None else None
        self.parts.append(text)
        self.tokens += tokens
        if self.logprobs is not None and logprobs is not None:
            self.logprobs += logprobs
        if not tokens and not text and self.finish is None:
            return None
        return Chunk(self.index, text, tokens, logprobs, self.finish, self.stop)

    def _decode(self, delta: Delta) -> tuple[str, int]:
        """Text that is safe to show, and how many of the delta's tokens it took to get there."""
        shown = ""
        last = len(delta.tokens) - 1
        for place, token in enumerate(delta.tokens):
            if place == last and delta.finish in _BY_TOKEN:
                self.stop = token if delta.finish is FinishReason.STOP_TOKEN else None
                break
            shown += self.stops.push(self.decoder.push(token))
            if self.stops.matched is not None:
                self.finish, self.stop = FinishReason.STOP_STRING, self.stops.matched
                return shown, place + 1
        if delta.finish is not None:
            self.finish = delta.finish
            shown += self.stops.push(self.decoder.flush())
            if self.stops.matched is not None:
                self.finish, self.stop = FinishReason.STOP_STRING, self.stops.matched
            shown += self.stops.flush()
        return shown, len(delta.tokens)

    def choice(self) -> Choice:
        assert self.finish is not None
        text = "".join(self.parts)
        return Choice(self.index, text, self.tokens, self.finish, self.stop, self.logprobs, self.timings)
