"""What became of each part of a prompt: kept, cut, dropped, with tokens and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from penstock.flow.context import Action, ContextPart, ContextTrace, HelperCall
from penstock.gateway.context.fit import Fitted
from penstock.settings.context import ContextSettings

MAX_ENTRIES = 100  # documents, and kept turns, that have an entry of their own


def make_trace(
    fitted: Fitted,
    settings: ContextSettings,
    *,
    model: str,
    rank: str | None,
    calls: Sequence[HelperCall] = (),
) -> ContextTrace:
    parts = [*_parts(fitted, settings)]
    markup = fitted.prompt_tokens - sum(part.tokens for part in parts)
    parts.append(ContextPart(kind="template", action="kept", tokens=markup, why="markup around the parts"))
    return ContextTrace(
        model=model,
        limit=fitted.limit,
        reserved_output=fitted.reserved,
        prompt_tokens=fitted.prompt_tokens,
        history=settings.history or "drop_oldest",
        rank=rank,
        placement=fitted.place if fitted.ranked else None,
        parts=tuple(parts),
        calls=tuple(calls),
    )


def _parts(fitted: Fitted, settings: ContextSettings) -> Iterator[ContextPart]:
    """In the order of the prompt, as far as they are in it."""
    if fitted.conversation.system:
        yield ContextPart(kind="system", action="kept", tokens=fitted.system_tokens, why="never cut")
    if fitted.schema_tokens:
        yield ContextPart(kind="schema", action="added", tokens=fitted.schema_tokens, why="show_schema")
    documents = [*_documents(fitted)]
    yield from (part for pinned, part in documents if pinned)
    if fitted.summary_tokens:
        yield ContextPart(kind="summary", action="added", tokens=fitted.summary_tokens, why="of the turns before")
    yield from _turns(fitted, settings)
    yield from (part for pinned, part in documents if not pinned)
    yield ContextPart(kind="user", action="kept", tokens=fitted.user_tokens, why="the last turn is never cut")


def _documents(fitted: Fitted) -> Iterator[tuple[bool, ContextPart]]:
    draft = fitted.draft
    placed = {one.document.id: one for one in (*draft.pinned, *draft.documents)}
    others, pinned = 0, len(draft.pinned)
    for number, one in enumerate(fitted.ranked):
        document, found = one.document, placed.get(one.document.id)
        if found is None and number >= MAX_ENTRIES:
            others += 1
            continue
        rank = "" if one.score is None else f"rank {number - pinned + 1}"
        if found is None:
            why = ", ".join(text for text in (rank, "no room") if text)
            tokens, given = 0, one.tokens
            action: Action = "dropped"
        elif found.cut:
            why, action, tokens, given = f"{rank or 'in order'}, best passages", "cut", found.tokens, one.tokens
        else:
            why, action, tokens, given = "pinned" if document.pinned else rank or "whole", "kept", found.tokens, None
        yield (
            document.pinned,
            ContextPart(
                kind="document",
                action=action,
                tokens=tokens,
                id=document.id,
                given_tokens=given,
                score=one.score,
                why=why,
            ),
        )
    if others:
        yield (
            False,
            ContextPart(kind="document", action="dropped", tokens=0, why=f"{others} more of lower rank, no room"),
        )


def _turns(fitted: Fitted, settings: ContextSettings) -> Iterator[ContextPart]:
    """Dropped turns in a row are one part, and so are the oldest of very many kept ones."""
    kept = fitted.draft.turns
    summarized = bool(fitted.draft.summary)
    single = len(kept) - MAX_ENTRIES
    runs = groupby(range(len(kept)), key=lambda place: (kept[place], place if kept[place] and place >= single else -1))
    for (is_kept, _), run in runs:
        places = list(run)
        tokens = sum(fitted.costs[place].tokens or 0 for place in places)
        first, last = places[0] + 1, places[-1] + 1
        name = str(first) if first == last else f"{first}-{last}"
        if is_kept:
            yield ContextPart(kind="turn", action="kept", tokens=tokens, id=name)
            continue
        policy = settings.history or "drop_oldest"
        why = "in the summary" if summarized else f"no room, by the policy {policy}"
        action: Action = "summarized" if summarized else "dropped"
        yield ContextPart(kind="turn", action=action, tokens=0, id=name, given_tokens=tokens, why=why)
