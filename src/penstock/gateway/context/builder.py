"""The assembly of one request: options, ranking, fitting, summary and trace. Long work runs in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel
from penstock.errors import InvalidRequest
from penstock.flow import Request, Vocabulary
from penstock.gateway.context import summary
from penstock.gateway.context.control_tokens import ControlTokens, plain_documents
from penstock.gateway.context.fit import DEFAULT_SUMMARY, ContextFitter, Fitted
from penstock.gateway.context.helper_models import HelperModels, Run
from penstock.gateway.context.prompt_model import PromptModel
from penstock.gateway.context.ranker import rank_documents
from penstock.gateway.context.trace import make_trace
from penstock.gateway.router import RETRYABLE
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.settings.context import ContextSettings


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
        self._control_tokens: WeakKeyDictionary[Vocabulary, ControlTokens] = WeakKeyDictionary()

    def concerns(self, model: ServedModel, request: Request) -> bool:
        """Whether the request's prompt is assembled; else it stays as it is."""
        if request.context is not None or request.documents:
            return True
        return request.messages is not None and _defaults_name(model) in self.defaults

    def defaults_of(self, model: ServedModel) -> ContextSettings:
        return self.defaults.get(_defaults_name(model), ContextSettings())

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
        control = self._control_tokens.get(model.vocabulary)
        if control is None:
            control = await asyncio.to_thread(ControlTokens, model.vocabulary)
            self._control_tokens[model.vocabulary] = control
        if request.documents:
            plain = await asyncio.to_thread(plain_documents, request.documents, control)
            request = replace(request, documents=plain)
        helpers = HelperModels(self._find, run, model, request)
        cuts = request.context is not None or _defaults_name(model) in self.defaults
        ranking = settings if cuts else ContextSettings(rank="given")
        rank, scored, warning = await rank_documents(request, ranking, helpers)
        warnings = request.warnings if warning is None else (*request.warnings, warning)

        def prepare() -> tuple[ContextFitter, Fitted]:
            fitter = ContextFitter(request, settings, PromptModel(model.pipeline), scored, cuts=cuts)
            return fitter, fitter.fit()

        fitter, fitted = await asyncio.to_thread(prepare)
        if settings.history == "summarize" and not all(fitted.draft.turns):
            try:
                fitted = await self._summarize(fitter, fitted, helpers, control)
            except RETRYABLE as error:
                why = f"the earlier conversation was dropped: its summary failed ({error.code})"
                warnings = (*warnings, why)
        trace = await asyncio.to_thread(
            make_trace,
            fitted,
            settings,
            model=model.card.name,
            rank=rank if request.documents else None,
            calls=helpers.calls,
        )
        if self._emit is not None:
            name = events.http_request_id(request.id)
            self._emit(events.ContextAssembled(name, time.monotonic(), start, trace))
        return replace(fitted.request, context_trace=trace if settings.trace else None, warnings=warnings)

    def _settings(self, model: ServedModel, request: Request) -> ContextSettings:
        settings = (request.context or ContextSettings()).over(self.defaults_of(model))
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

    async def _summarize(
        self, fitter: ContextFitter, fitted: Fitted, helpers: HelperModels, control: ControlTokens
    ) -> Fitted:
        request, settings, field = fitter.request, fitter.settings, "context.summary_model"
        writer = helpers.find(settings.summary_model, field)
        dropped = [place for place, kept in enumerate(fitted.draft.turns) if not kept]
        limit = settings.summary_tokens or DEFAULT_SUMMARY

        def transcript() -> tuple[str, bytes]:
            text = summary.transcript(request.messages or [], fitted.conversation, dropped)
            return text, summary.summary_key(request, writer.card.name, text, limit)

        text, key = await asyncio.to_thread(transcript)
        if (known := self._summaries.get(key)) is None:
            name = helpers.request_id("summary")
            asked = summary.summary_request(request, name, text, limit, writer.card.context)
            ticket = await helpers.ask("summary", writer, [asked], field)
            known = control.defuse(ticket.active_requests[0].completion().text.strip())
            self._summaries.put(key, known)
        return await asyncio.to_thread(fitter.fit, known, len(dropped))


def _defaults_name(model: ServedModel) -> str:
    """Whose defaults apply: an adapter has its base's."""
    return model.card.parent or model.card.name
