"""From the events of an upstream to the chunks of a request."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.deployment.upstream_events import AnswerChoice, AnswerEvent, CallPiece, Piece, ScoredToken, TopToken
from penstock.deployment.upstream_usage import ReportedUsage
from penstock.deployment.upstream_vocabulary import UNKNOWN, UpstreamVocabulary
from penstock.errors import UpstreamFailed
from penstock.flow import CallDelta, Chunk, FinishReason, SamplingParams, TokenLogprobs

MAX_OUTPUT_BYTES = 64 << 20  # of one request: an upstream must not fill this server's memory

_FINISH = {
    "stop": FinishReason.END,
    "eos": FinishReason.END,
    "tool_calls": FinishReason.END,
    "function_call": FinishReason.END,
    "content_filter": FinishReason.CONTENT_FILTER,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "timeout": FinishReason.TIMEOUT,
}


class AnswerReader:
    """Of one request. Raises UpstreamFailed for an answer that makes no sense."""

    def __init__(self, params: SamplingParams, vocabulary: UpstreamVocabulary) -> None:
        choices = params.n
        self._vocabulary = vocabulary
        self._logprobs = params.logprobs is not None
        self._stops = params.stop
        self._calls: list[dict[int, int]] = [{} for _ in range(choices)]  # by choice: their index -> ours
        self._ended = [False] * choices
        self._bytes = 0
        self.model: str | None = None  # that the upstream says it is
        self.usage: ReportedUsage | None = None
        self.texts: list[list[str]] = [[] for _ in range(choices)]  # all output, for an estimate of its tokens

    @property
    def complete(self) -> bool:
        return all(self._ended)

    def read(self, event: AnswerEvent) -> Iterator[Chunk]:
        self.model = self.model or event.model
        self.usage = event.usage or self.usage
        for choice in event.choices:
            if not 0 <= choice.index < len(self._ended):
                raise UpstreamFailed(f"it sent choice {choice.index} of {len(self._ended)}")
            if self._ended[choice.index]:
                continue
            if (chunk := self._chunk(choice)) is not None:
                yield chunk

    def _chunk(self, choice: AnswerChoice) -> Chunk | None:
        piece = choice.delta or choice.message or Piece()
        text = (choice.text or "") + (piece.content or "") + (piece.refusal or "")
        reasoning = piece.reasoning_content or piece.reasoning or ""
        calls = tuple(self._call(choice.index, call) for call in piece.tool_calls or ())
        finish, stop = self._finish(choice)
        scored = choice.logprobs.scored() if self._logprobs and choice.logprobs is not None else []
        if not (text or reasoning or calls or finish or scored):
            return None
        shown = [text, reasoning, *(f"{call.name or ''}{call.arguments}" for call in calls)]
        self.texts[choice.index] += shown
        self._bytes += sum(map(len, shown))
        if self._bytes > MAX_OUTPUT_BYTES:
            raise UpstreamFailed(f"its answer has more than {MAX_OUTPUT_BYTES} characters")
        logprobs = [self._scored(one) for one in scored] if self._logprobs else None
        tokens = [one.token for one in logprobs] if logprobs else [UNKNOWN] * bool(text or reasoning or calls)
        if finish is FinishReason.END:  # as from an engine: the token that ends the output is one of it
            tokens = [*tokens, UNKNOWN]
            logprobs = None if logprobs is None else [*logprobs, TokenLogprobs(UNKNOWN, 0.0, 1, [])]
        self._ended[choice.index] = finish is not None
        return Chunk(choice.index, text, tokens, logprobs, finish, stop, reasoning, calls)

    def _call(self, choice: int, piece: CallPiece) -> CallDelta:
        known = self._calls[choice]
        theirs = piece.index if piece.index is not None else (len(known) if piece.id or not known else max(known))
        function = piece.function
        name = function.name if function is not None else None
        arguments = (function.arguments if function is not None else None) or ""
        if theirs in known:
            return CallDelta(index=known[theirs], arguments=arguments)
        if not name:
            raise UpstreamFailed("it sent the arguments of a tool call without its name")
        known[theirs] = len(known)
        return CallDelta(index=known[theirs], id=piece.id or f"call_{known[theirs]}", name=name, arguments=arguments)

    def _finish(self, choice: AnswerChoice) -> tuple[FinishReason | None, str | None]:
        if not choice.finish_reason:  # some servers send an empty one until the end
            return None, None
        finish = _FINISH.get(choice.finish_reason)
        if finish is None:
            raise UpstreamFailed(f"it ended for an unknown reason: {choice.finish_reason[:64]!r}")
        if finish is FinishReason.END and isinstance(choice.stop_reason, str) and choice.stop_reason in self._stops:
            return FinishReason.STOP_STRING, choice.stop_reason
        return finish, None

    def _scored(self, entry: ScoredToken) -> TokenLogprobs:
        top = [(self._id(one), one.logprob) for one in entry.top_logprobs or ()]
        rank = 1 + sum(logprob > entry.logprob for _, logprob in top)
        return TokenLogprobs(self._id(entry), entry.logprob, rank, top)

    def _id(self, entry: TopToken) -> int:
        given = entry.bytes
        if given is not None and all(0 <= byte < 256 for byte in given):
            return self._vocabulary.token(bytes(given))
        return self._vocabulary.token(entry.token.encode(errors="replace"))
