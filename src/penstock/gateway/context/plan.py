"""What assembly makes of a prompt, for the planner: the same ranking, fitting and trace, without asking a model."""

from __future__ import annotations

from penstock.errors import ContextOverflow, InvalidRequest
from penstock.flow import Request, SamplingParams
from penstock.flow.context import ContextTrace
from penstock.gateway.context import ranking
from penstock.gateway.context.budget import Prompt
from penstock.gateway.context.control_tokens import ControlTokens, plain_documents
from penstock.gateway.context.fit import ContextFitter
from penstock.gateway.context.prompt_model import PromptModel
from penstock.gateway.context.ranker import last_user_text, split_pinned
from penstock.gateway.context.trace import make_trace
from penstock.pipeline import Pipeline
from penstock.settings.context import MODEL_RANKINGS, ContextBudget, ContextSettings

FIELD = "assembly"


def within(settings: ContextSettings, context: int | None) -> ContextSettings:
    """With `context` as the total, if they name none."""
    return settings.over(ContextSettings(budget=ContextBudget(total=context)))


def plan_assembly(
    prompt: Prompt, settings: ContextSettings, pipeline: Pipeline, *, reserved_output: int
) -> ContextTrace:
    """Under the policy `summarize`, room is kept for a summary that is not written. Raises InvalidRequest."""
    if (conflict := settings.conflict()) is not None:
        field = f"{FIELD}.{conflict[0]}"
        raise InvalidRequest(f"{field} {conflict[1]}", param=field)
    if settings.rank in MODEL_RANKINGS:
        field = f"{FIELD}.rank"
        raise InvalidRequest(f"{field} is {settings.rank}, which asks a model: the planner asks none", param=field)
    model = PromptModel(pipeline)
    request = Request(
        id="",
        params=SamplingParams(max_tokens=reserved_output),
        messages=Prompt(system=prompt.system, history=prompt.history, user=prompt.user).messages(),
        documents=plain_documents(prompt.given(), ControlTokens(model.tokenizer)),
        context=settings,
    )
    pinned, others = split_pinned(request.documents)
    rank = settings.rank or ranking.default_ranking(others)
    if rank == "score":
        ranking.given_scores(request.documents)
    scored = [*pinned, *ranking.rank_without_model(rank, last_user_text(request), others)]
    try:
        fitted = ContextFitter(request, settings, model, scored, cuts=True).fit()
    except ContextOverflow as error:
        raise ContextOverflow(_planner_names(error.message), param=_planner_names(error.param or "")) from None
    return make_trace(fitted, settings, model=pipeline.model, rank=rank if request.documents else None)


def _planner_names(text: str) -> str:
    """With the names that fields of a request have here."""
    for name, here in (("context.", f"{FIELD}."), ("max_tokens", "reserved_output"), ("messages", "user")):
        text = text.replace(name, here)
    return text
