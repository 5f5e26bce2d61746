"""The parts of a request that fit the budget, in real tokens.

Texts are counted once, each on its own, and parts are chosen by these counts. Then the whole prompt is rendered and
tokenized; what it has too much comes off the room, and the choice is made again. That takes two renderings as a rule,
and MAX_RENDERINGS at most: then only what must stay is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from penstock.errors import ContextOverflow, InvalidRequest
from penstock.flow import Request
from penstock.flow.context import Document
from penstock.gateway.context.documents import PlacedDocument, RankedDocument, block, choose_documents, cut_text
from penstock.gateway.context.passages import PassageFinder
from penstock.gateway.context.placement import SCHEMA, SUMMARY, Draft, Place, build, choose_place
from penstock.gateway.context.prompt_model import PromptModel
from penstock.gateway.context.turns import CHARS_PER_TOKEN, STEPS, Conversation, TurnCost, choose_turns, split
from penstock.settings.context import ContextSettings

MAX_RENDERINGS = 6
DEFAULT_OUTPUT = 256  # tokens reserved for the answer if the request sets no limit
DEFAULT_SUMMARY = 256
FRAME = "<documents>\n\n</documents>\n\n"


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    request: Request  # assembled
    draft: Draft
    conversation: Conversation
    ranked: Sequence[RankedDocument]
    costs: Sequence[TurnCost]
    place: Place
    limit: int
    reserved: int
    prompt_tokens: int
    system_tokens: int
    user_tokens: int
    schema_tokens: int
    summary_tokens: int


class ContextFitter:
    """Of one request and model. Everything is counted when it is made; `fit` chooses."""

    def __init__(
        self,
        request: Request,
        settings: ContextSettings,
        model: PromptModel,
        scored: Sequence[tuple[Document, float | None]],
        *,
        cuts: bool,
    ) -> None:
        """`scored`: the documents, best first, pinned ones first of all. `cuts`: False keeps everything, and an
        overflow is the pipeline's error."""
        self.request, self.settings, self.model, self.cuts = request, settings, model, cuts
        self.conversation = split(request.messages or [])
        self.passages = PassageFinder(self.conversation.last.text)
        messages = request.messages or []
        has_user = any(messages[place].get("role") == "user" for place in self.conversation.last.places)
        self.place = choose_place(settings.placement, shows_documents=model.shows_documents, has_user=has_user)
        self.schema = _schema(request, settings)
        self._count_texts()
        self.ranked = self._count_documents(scored)
        whole = [PlacedDocument(one.document, one.document.text, one.tokens or 0) for one in self.ranked]
        self.pinned = [one for one in whole if one.document.pinned]
        self.uncut = [] if cuts else [one for one in whole if not one.document.pinned]
        self.limit = min(settings.budget.total or model.context, model.context)
        self.reserved = self._reserved_output()
        self._check_parts()

    def fit(self, summary: str | None = None, first_kept: int = 0) -> Fitted:
        """`summary` of the turns before `first_kept`. None: room for one is kept where turns are dropped under the
        policy `summarize`. Raises ContextOverflow if what must stay does not fit."""
        least = Draft(
            pinned=self.pinned,
            documents=self.uncut,
            turns=self._fixed_turns(),
            schema=self.schema,
            summary=self._fitting_summary(summary),
        )
        base = self._tokens(least)
        limit = self.limit - self.reserved
        if not self.cuts:
            return self._fitted(least, base or 0)
        if base is None or base > limit:
            raise self._overflow(base, limit)
        room, best, renderings = limit - base, (least, base), 1
        while renderings < MAX_RENDERINGS and room > 0:
            draft = self._choose(least, room, summary is None, first_kept)
            tokens = self._tokens(draft)
            renderings += 1
            if tokens is not None and tokens <= limit:
                best = (draft, tokens)
                break
            room -= max((limit if tokens is None else tokens) - limit, room // 4 if tokens is None else 1)
        return self._fitted(*best)

    # --- choices

    def _fixed_turns(self) -> list[bool]:
        keep = self.settings.history == "keep_all" or not self.cuts
        return [keep] * len(self.costs)

    def _choose(self, least: Draft, room: int, reserve_summary: bool, first_kept: int) -> Draft:
        budget = self.settings.budget
        free = [one for one in self.ranked if not one.document.pinned]
        fixed = all(least.turns)
        history = 0 if fixed else sum((cost.tokens or 0) + cost.markup for cost in self.costs)
        share = room
        if free and history and budget.documents is None:
            wanted = history if budget.history is None else min(history, budget.history + self._markup(self.costs))
            share = max(room // 2 if budget.history is None else 0, room - wanted)
        if budget.documents is not None:
            share = min(share, budget.documents - sum(one.tokens for one in self.pinned))
        frame = self.model.count([FRAME])[0]
        documents: list[PlacedDocument] = []
        if free:
            longest = self.model.longest_text
            documents = choose_documents(free, share - frame, self.model.count, longest, self.passages)
        room -= sum(one.tokens for one in documents) + (frame if documents else 0)
        if fixed:
            return replace(least, documents=documents)
        turns = self._choose_turns(room, first_kept)
        if self.settings.history == "summarize" and reserve_summary and not all(turns):
            turns = self._choose_turns(room - self._summary_room(), first_kept)
        return replace(least, documents=documents, turns=turns)

    def _choose_turns(self, room: int, first_kept: int) -> list[bool]:
        step = max((self.limit - self.reserved) * CHARS_PER_TOKEN // STEPS, 1)
        kept = choose_turns(
            self.costs[first_kept:],
            room=max(room, 0),
            budget=self.settings.budget.history,
            first=self.settings.keep_first or 0,
            step_characters=step,
        )
        return [False] * first_kept + kept

    def _summary_room(self) -> int:
        return (self.settings.summary_tokens or DEFAULT_SUMMARY) + self.model.count([SUMMARY])[0] + 4

    def _fitting_summary(self, summary: str | None) -> str:
        room = self.settings.summary_tokens or DEFAULT_SUMMARY
        return cut_text(summary, room, self.model.count, self.model.longest_text) if summary else ""

    # --- counts

    def _count_texts(self) -> None:
        messages, conversation = self.request.messages or [], self.conversation
        systems = [str(messages[place].get("content") or "") for place in conversation.system]
        longest = self.model.longest_text
        counted = self.model.count(
            ["\n".join(systems)[:longest], conversation.last.text[:longest], self.schema[:longest]]
        )
        self.system_tokens, self.user_tokens, self.schema_tokens = counted
        left, countable = longest, []
        for turn in reversed(conversation.history):
            left -= len(turn.text)
            countable.append(left >= 0)
        texts = [turn.text for turn, counts in zip(conversation.history, reversed(countable), strict=True) if counts]
        counts = [None] * (len(conversation.history) - len(texts)) + self.model.count(texts)
        self.costs = [
            TurnCost(tokens, self.model.message_markup * len(turn.places), len(turn.text))
            for turn, tokens in zip(conversation.history, counts, strict=True)
        ]

    def _count_documents(self, scored: Sequence[tuple[Document, float | None]]) -> list[RankedDocument]:
        """As many as could matter: those behind are dropped."""
        left, texts = self.model.longest_text, []
        for document, _ in scored:
            left -= len(document.text)
            if left < 0:
                break
            texts.append(document.text.strip() if self.place == "template" else block(document, document.text))
        counts = [*self.model.count(texts), *[None] * (len(scored) - len(texts))]
        return [
            RankedDocument(document, score, tokens) for (document, score), tokens in zip(scored, counts, strict=True)
        ]

    @staticmethod
    def _markup(costs: Sequence[TurnCost]) -> int:
        return sum(cost.markup for cost in costs)

    def _tokens(self, draft: Draft) -> int | None:
        return self.model.prompt_tokens(build(self.request, self.conversation, draft, self.place))

    # --- limits

    def _reserved_output(self) -> int:
        params, asked = self.request.params, self.settings.budget.output or 0
        default = min(self.model.pipeline.default_max_tokens or DEFAULT_OUTPUT, max(self.limit // 4, 1))
        if params.max_tokens is None:
            return max(asked or default, params.min_tokens, 1)
        if self.request.fit_context:  # a key's default, which gives way
            return max(asked, min(params.max_tokens, max(self.limit // 4, 1)))
        return max(asked, params.max_tokens, 1)

    def _check_parts(self) -> None:
        """What is never cut must fit its own budget."""
        budget = self.settings.budget
        pinned = sum(one.tokens for one in self.pinned)
        parts = {"system": self.system_tokens, "user": self.user_tokens, "documents": pinned}
        if self.settings.history == "keep_all":
            parts["history"] = sum(cost.tokens or 0 for cost in self.costs)
        for name, tokens in parts.items():
            limit = getattr(budget, name)
            if self.cuts and limit is not None and tokens > limit:
                field = f"context.budget.{name}"
                what = {"documents": "the pinned documents have", "history": "the history has"}.get(name, f"{name} has")
                raise ContextOverflow(f"{field} is {limit}, but {what} {tokens} tokens", param=field)

    def _overflow(self, tokens: int | None, limit: int) -> ContextOverflow:
        output = self._output_field()
        if limit < 1:
            return ContextOverflow(
                f"{output} reserves {self.reserved} tokens for the answer, which leaves none of {self.limit} for the "
                "prompt",
                param=output,
            )
        fixed = {
            "system": self.system_tokens,
            "schema": self.schema_tokens,
            "pinned documents": sum(one.tokens for one in self.pinned),
            "history": sum(
                cost.tokens or 0 for cost, kept in zip(self.costs, self._fixed_turns(), strict=True) if kept
            ),
            "last message": self.user_tokens,
        }
        if tokens is not None:
            fixed["chat template"] = max(tokens - sum(fixed.values()), 0)
        named = ", ".join(f"{name} {count}" for name, count in fixed.items() if count)
        has = "more tokens than the context" if tokens is None else f"{tokens} tokens"
        lower = f", or lower {output}" if tokens is not None and tokens < self.limit else ""
        return ContextOverflow(
            f"the prompt has {has} without anything that may be cut ({named}), but {limit} is what {self.limit} tokens "
            f"leave beside {self.reserved} of output: shorten it{lower}",
            param="messages",
        )

    def _output_field(self) -> str:
        """What says how many tokens are reserved for the answer."""
        params = self.request.params
        asked = {params.min_tokens: "min_tokens", params.max_tokens: "max_tokens"}
        return asked.get(self.reserved, "context.budget.output")

    def _fitted(self, draft: Draft, tokens: int) -> Fitted:
        counts = self.model.count([draft.summary and SUMMARY + draft.summary, draft.schema and SCHEMA + draft.schema])
        return Fitted(
            request=build(self.request, self.conversation, draft, self.place),
            draft=draft,
            conversation=self.conversation,
            ranked=self.ranked,
            costs=self.costs,
            place=self.place,
            limit=self.limit,
            reserved=self.reserved,
            prompt_tokens=tokens,
            system_tokens=self.system_tokens,
            user_tokens=self.user_tokens,
            schema_tokens=counts[1],
            summary_tokens=counts[0],
        )


def _schema(request: Request, settings: ContextSettings) -> str:
    """The JSON schema of the output, if the model is to be told."""
    constraint = request.params.constraint
    if not settings.show_schema:
        return ""
    if constraint is None or constraint.kind != "json_schema":
        if request.context is not None and request.context.show_schema:
            raise InvalidRequest("context.show_schema needs a JSON schema of the output", param="context.show_schema")
        return ""
    return constraint.source
