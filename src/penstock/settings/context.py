"""How prompts are assembled under a token budget: `context` in a request, or `context_defaults` of a model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.settings.sections import Positive, Section

HistoryPolicy = Literal["drop_oldest", "keep_first", "summarize", "keep_all"]
Ranking = Literal["score", "bm25", "embedding", "reranker", "given"]
Placement = Literal["auto", "template", "system", "user"]
MODEL_RANKINGS = ("embedding", "reranker")
PARTS = ("system", "history", "documents", "user")


class ContextBudget(Section, frozen=True):
    """Token limits; None: what is left. Those of a part bound its own text, `total` the whole prompt and its output."""

    total: Positive | None = None
    system: Positive | None = None
    history: Positive | None = None
    documents: Positive | None = None
    user: Positive | None = None
    output: Positive | None = None  # reserved


class ContextSettings(Section, frozen=True):
    """None: the default, which `gateway.context` documents."""

    budget: ContextBudget = ContextBudget()
    history: HistoryPolicy | None = None
    keep_first: Annotated[int, Meta(ge=0)] | None = None  # turns, under the policy of this name
    summary_model: str | None = None  # None: the model that answers
    summary_tokens: Positive | None = None
    rank: Ranking | None = None
    rank_model: str | None = None  # None: the model that answers
    placement: Placement | None = None
    show_schema: bool | None = None  # tell the model the schema of its output
    trace: bool | None = None  # send the trace with the response

    def over(self, defaults: ContextSettings) -> ContextSettings:
        """These settings, with what they leave open from `defaults`: but none of the limits there that have no room in
        their own total."""
        own, total = _given(self.budget), self.budget.total
        limits = {name: limit for name, limit in _given(defaults.budget).items() if total is None or limit < total}
        budget = {**limits, **own}
        others = {**_given(defaults), **_given(self)}
        if self.history is not None and self.history != defaults.history:  # the default's details belong to its policy
            details = {name: getattr(self, name) for name in ("keep_first", "summary_model", "summary_tokens")}
            others.update(details)
        if self.rank is not None and self.rank != defaults.rank:
            others["rank_model"] = self.rank_model
        return ContextSettings(**{**others, "budget": ContextBudget(**budget)})

    def conflict(self) -> tuple[str, str] | None:
        """The name of a field that contradicts the others, and how."""
        history = self.history or "drop_oldest"
        if self.keep_first is not None and history != "keep_first":
            return "keep_first", "goes with history: keep_first only"
        if self.keep_first is None and history == "keep_first":
            return "keep_first", "is required with history: keep_first"
        for name in ("summary_model", "summary_tokens"):
            if getattr(self, name) is not None and history != "summarize":
                return name, "goes with history: summarize only"
        if self.rank_model is not None and self.rank not in MODEL_RANKINGS:
            return "rank_model", f"goes with rank: {' or '.join(MODEL_RANKINGS)} only"
        total = self.budget.total
        for name in ("output", *PARTS):
            if total is not None and (getattr(self.budget, name) or 0) >= total:
                return f"budget.{name}", f"must be less than budget.total, which is {total}"
        return None


def _given(section: Section) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(section).items() if value is not None}
