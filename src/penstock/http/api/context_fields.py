"""Fields of context assembly, an extension that several APIs share: `context` and `documents`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from penstock.flow.context import Document
from penstock.http.api.fields import MAX_INT, StrictModel, field_error
from penstock.http.parse.error_text import MAX_SHOWN_NAME
from penstock.http.parse.unions import ByJsonType
from penstock.settings.context import ContextBudget, ContextSettings, HistoryPolicy, Placement, Ranking

MAX_DOCUMENTS = 1024
MAX_KEEP_FIRST = 10_000

Tokens = Annotated[int, Field(ge=1, le=MAX_INT)]
_ModelName = Annotated[str, Field(min_length=1, max_length=256)]


class GivenDocument(StrictModel):
    id: str | None = Field(
        None, min_length=1, max_length=256, description="Its name in the prompt and in the trace. Default: its number."
    )
    text: str = Field(min_length=1)
    title: str | None = Field(None, max_length=1000)
    score: float | None = Field(None, description="How useful it is, by the client's own search: larger is better.")
    pinned: bool | None = Field(
        None, description="Keep it whole, in front of the conversation, where the prefix cache finds it again."
    )


class BudgetFields(StrictModel):
    """Token limits. What is not given is what is left."""

    total: Tokens | None = Field(None, description="Prompt and output together. Default: the context of the model.")
    system: Tokens | None = Field(None, description="Of the system message, which is never cut: more is an error.")
    history: Tokens | None = Field(None, description="Of the turns before the last.")
    documents: Tokens | None = Field(None, description="Of all documents.")
    user: Tokens | None = Field(None, description="Of the last turn, which is never cut: more is an error.")
    output: Tokens | None = Field(None, description="Reserved for the answer; at least `max_tokens`. Default: 256.")


class ContextOptions(StrictModel):
    """How the prompt is put together to fit a token budget. `{}` takes all defaults."""

    budget: BudgetFields | None = None
    history: HistoryPolicy | None = Field(
        None,
        description="What becomes of turns that have no room: the oldest are dropped (the default), all but the first "
        "`keep_first` are, they are summarized by a model, or none is dropped and an overflow is an error.",
    )
    keep_first: int | None = Field(None, ge=0, le=MAX_KEEP_FIRST, description="Turns, for the policy of this name.")
    summary_model: _ModelName | None = Field(None, description="Writes summaries. Default: the model that answers.")
    summary_tokens: Tokens | None = Field(None, description="Of a summary, at most. Default: 256.")
    rank: Ranking | None = Field(
        None,
        description="By what documents are ranked. Default: `score` if all have one, else `bm25`. `embedding` and "
        "`reranker` ask a model; `given`: as they came.",
    )
    rank_model: _ModelName | None = Field(
        None, description="For `embedding` and `reranker`. Default: the model that answers."
    )
    placement: Placement | None = Field(
        None,
        description="Where documents go: by the chat template, in the system message, or before the user's last text. "
        "Default: by the template if it shows documents, else before the user's text.",
    )
    show_schema: bool | None = Field(
        None, description="Put the JSON schema of the output into the prompt. It is enforced in any case."
    )
    trace: bool | None = Field(None, description="Send the trace of the assembly with the response.")

    def settings(self) -> ContextSettings:
        fields = self.model_dump(exclude={"budget"}, exclude_none=True)
        budget = {} if self.budget is None else self.budget.model_dump(exclude_none=True)
        return ContextSettings(budget=ContextBudget(**budget), **fields)


GivenText = Annotated[
    Annotated[str, Field(min_length=1)] | GivenDocument, ByJsonType("a string or an object with a text")
]


def _check_documents(documents: list[str | GivenDocument]) -> list[str | GivenDocument]:
    seen: set[str] = set()
    for place, document in enumerate(documents):
        name = _name(document, place)
        if name in seen:
            raise field_error(f"has two documents with the id {name[:MAX_SHOWN_NAME]!r}")
        seen.add(name)
    return documents


def _name(document: str | GivenDocument, place: int) -> str:
    return (None if isinstance(document, str) else document.id) or str(place + 1)


Documents = Annotated[
    list[GivenText], Field(max_length=MAX_DOCUMENTS, fail_fast=True), AfterValidator(_check_documents)
]


def to_documents(given: Sequence[str | GivenDocument]) -> tuple[Document, ...]:
    return tuple(
        Document(id=_name(one, place), text=one)
        if isinstance(one, str)
        else Document(id=_name(one, place), text=one.text, title=one.title, score=one.score, pinned=bool(one.pinned))
        for place, one in enumerate(given)
    )


class ContextFields(StrictModel):
    context: ContextOptions | None = Field(
        None,
        description="Extension. Fit the prompt into a token budget, with a trace. Without it nothing is cut, and a "
        "prompt that is too long is an error.",
    )
    documents: Documents | None = Field(
        None,
        description="Extension. Texts to answer from. With `context` they are ranked, and cut to fit; without it all "
        "are put into the prompt as they came.",
    )

    def assembly(self) -> dict[str, Any]:
        """Fields of flow.Request."""
        context = None if self.context is None else self.context.settings()
        return {"context": context, "documents": to_documents(self.documents or ())}
