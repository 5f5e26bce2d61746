"""The assembly of one request: options, ranking, fitting, summary and trace. Long work runs in threads."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec.structs import replace

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel
from penstock.errors import InvalidRequest, ModelNotFound, PenstockError
from penstock.flow import Request
from penstock.flow.context import Document, HelperCall, HelperKind
from penstock.gateway.context import model_ranking, ranking, summary
from penstock.gateway.context.fit import DEFAULT_SUMMARY, ContextFitter, Fitted
from penstock.gateway.context.prompt_model import PromptModel
from penstock.gateway.context.texts import message_text
from penstock.gateway.context.trace import make_trace
from penstock.gateway.router import RETRYABLE
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.settings.context import ContextSettings, Ranking
from penstock.stream.active_request import ActiveRequest

# Runs requests of the assembly on a model and returns their results; they are charged to the client's request.
Run = Callable[[ServedModel, list[Request]], Awaitable[list[ActiveRequest]]]
Scored = list[tuple[Document, float | None]]


class ContextBuilder:
    """One per server. Belongs to one event loop."""

    def __init__(
        self,
        find: Callable[[str], ServedModel],
        defaults: Mapping[str, ContextSettings] | None = None,
        emit: Emit | None = None,
    ) -> None:
        """`defaults`: of models, by name. `find` raises ModelNotFound."""
        self.defaults = dict(defaults or {})
        self._find = find
        self._emit = emit
        self._summaries = summary.SummaryCache()

    def concerns(self, model: ServedModel, request: Request) -> bool:
        """Whether the request's prompt is assembled; else it stays as it is."""
        if request.context is not None or request.documents:
            return True
        return request.messages is not None and model.card.name in self.defaults

    async def assemble(self, model: ServedModel, request: Request, run: Run) -> Request:
        """The request with its prompt assembled, and the trace of that. Raises InvalidRequest."""
        start = time.monotonic()
        settings = self._settings(model, request)
        if not isinstance(model, LocalModel):
            param = "documents" if request.context is None else "context"
            raise InvalidRequest(
                f"{param} is not supported by {model.card.name}: its tokenizer and chat template are not known here",
                param=param,
            )
        calls: list[HelperCall] = []
        cuts = request.context is not None or model.card.name in self.defaults
        rank, scored = await self._rank(model, request, settings if cuts else ContextSettings(rank="given"), run, calls)

        def prepare() -> tuple[ContextFitter, Fitted]:
            fitter = ContextFitter(request, settings, PromptModel(model.pipeline), scored, cuts=cuts)
            return fitter, fitter.fit()

        fitter, fitted = await asyncio.to_thread(prepare)
        warnings = request.warnings
        if settings.history == "summarize" and not all(fitted.draft.turns):
            try:
                fitted = await self._summarize(model, request, settings, fitter, fitted, run, calls)
            except RETRYABLE as error:
                why = f"the earlier conversation was dropped: its summary failed ({error.code})"
                warnings = (*warnings, why)
        trace = make_trace(
            fitted, settings, model=model.card.name, rank=rank if request.documents else None, calls=calls
        )
        if self._emit is not None:
            name = events.http_request_id(request.id)
            self._emit(events.ContextAssembled(name, time.monotonic(), start, trace))
        return replace(fitted.request, context_trace=trace, warnings=warnings)

    def _settings(self, model: ServedModel, request: Request) -> ContextSettings:
        settings = (request.context or ContextSettings()).over(self.defaults.get(model.card.name, ContextSettings()))
        if (conflict := settings.conflict()) is not None:
            field = f"context.{conflict[0]}"
            raise InvalidRequest(f"{field} {conflict[1]}", param=field)
        if request.messages is None:
            raise InvalidRequest("context goes with messages only", param="context")
        if request.truncate_prompt_tokens is not None:
            raise InvalidRequest(
                "truncate_prompt_tokens and context exclude each other", param="truncate_prompt_tokens"
            )
        if request.documents and "documents" in request.template_arguments:
            raise InvalidRequest("documents and chat_template_kwargs.documents exclude each other", param="documents")
        return settings

    # --- ranking

    async def _rank(
        self, model: LocalModel, request: Request, settings: ContextSettings, run: Run, calls: list[HelperCall]
    ) -> tuple[Ranking, Scored]:
        """Pinned documents first, as they came; then the others, best first."""
        pinned: Scored = [(one, None) for one in request.documents if one.pinned]
        others = [one for one in request.documents if not one.pinned]
        rank = settings.rank or ranking.default_ranking(others)
        if not others or rank == "given":
            return rank, [*pinned, *((one, None) for one in others)]
        if rank == "score":
            ranking.given_scores(request.documents)
            scores = [one.score or 0.0 for one in others]
            return rank, [*pinned, *_ordered(others, scores)]
        query = _query(request)
        scored = _ordered(others, await asyncio.to_thread(ranking.bm25_scores, query, others))
        if rank == "embedding":
            best = [one for one, _ in scored[: model_ranking.MAX_EMBEDDED]]
            similar = await self._embed(
                self._helper(settings.rank_model, model, "rank_model"), request, query, best, run, calls
            )
            rest: Scored = [(one, None) for one, _ in scored[model_ranking.MAX_EMBEDDED :]]
            scored = [*_ordered(best, similar), *rest]
        return rank, [*pinned, *scored]

    async def _embed(
        self,
        model: ServedModel,
        request: Request,
        query: str,
        documents: Sequence[Document],
        run: Run,
        calls: list[HelperCall],
    ) -> list[float]:
        asked = model_ranking.embedding_requests(request, uuid.uuid4().hex, query, documents, model.card.context)
        try:
            results = await run(model, asked)
        except InvalidRequest as error:
            raise _of_field(error, "context.rank_model") from None
        calls.append(_helper_call("embedding", model, results))
        return model_ranking.similarities([result.embedding() for result in results])

    # --- summaries

    async def _summarize(
        self,
        model: LocalModel,
        request: Request,
        settings: ContextSettings,
        fitter: ContextFitter,
        fitted: Fitted,
        run: Run,
        calls: list[HelperCall],
    ) -> Fitted:
        writer = self._helper(settings.summary_model, model, "summary_model")
        dropped = [place for place, kept in enumerate(fitted.draft.turns) if not kept]
        limit = settings.summary_tokens or DEFAULT_SUMMARY
        text = await asyncio.to_thread(summary.transcript, request.messages or [], fitted.conversation, dropped)
        key = summary.summary_key(request, writer.card.name, text, limit)
        if (known := self._summaries.get(key)) is None:
            asked = summary.summary_request(request, uuid.uuid4().hex, text, limit, writer.card.context)
            try:
                results = await run(writer, [asked])
            except InvalidRequest as error:
                raise _of_field(error, "context.summary_model") from None
            calls.append(_helper_call("summary", writer, results))
            known = results[0].completion().text.strip()
            self._summaries.put(key, known)
        return await asyncio.to_thread(fitter.fit, known, len(dropped))

    def _helper(self, name: str | None, model: ServedModel, field: str) -> ServedModel:
        if name is None:
            return model
        try:
            return self._find(name)
        except ModelNotFound as error:
            raise _of_field(error, f"context.{field}") from None


def _ordered(documents: Sequence[Document], scores: Sequence[float]) -> Scored:
    return [(documents[place], scores[place]) for place in ranking.order(scores)]


def _query(request: Request) -> str:
    """What documents are to be useful for: the user's last message."""
    texts = [message_text(one) for one in request.messages or () if one.get("role") == "user"]
    return texts[-1] if texts else ""


def _helper_call(kind: HelperKind, model: ServedModel, results: Sequence[ActiveRequest]) -> HelperCall:
    return HelperCall(
        kind=kind,
        model=model.card.name,
        requests=len(results),
        prompt_tokens=sum(len(one.submits[0].tokens) for one in results),
        output_tokens=sum(choice.output_tokens for one in results for choice in one.choices),
    )


def _of_field(error: PenstockError, field: str) -> PenstockError:
    """The error of a model that the client named in another field than `model`."""
    return type(error)(f"{field}: {error.message}", param=field)
