"""Parts put together as a request: system message, schema, pinned documents and summary first, then the kept turns,
then other documents with the last message of the user.

| part | where |
|---|---|
| schema | end of the system message |
| pinned documents | the template's variable `documents`, else the system message |
| summary | end of the system message |
| other documents | the template's variable, else before the text of the user's last message |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from penstock.errors import InvalidRequest
from penstock.flow import Message, Request
from penstock.gateway.context.documents import PlacedDocument, block
from penstock.gateway.context.turns import Conversation
from penstock.settings.context import Placement

Place = Literal["template", "system", "user"]
SCHEMA = "Answer with JSON that is valid under this JSON schema:\n"
SUMMARY = "Summary of the earlier conversation:\n"


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a prompt."""

    pinned: Sequence[PlacedDocument] = ()
    documents: Sequence[PlacedDocument] = ()
    turns: Sequence[bool] = ()  # of the history: whether it is kept
    schema: str = ""
    summary: str = ""


def choose_place(asked: Placement | None, *, shows_documents: bool, has_user: bool) -> Place:
    """Raises InvalidRequest for a template that shows no documents."""
    if asked == "template" and not shows_documents:
        raise InvalidRequest(
            "context.placement is template, but this model's chat template shows no documents",
            param="context.placement",
        )
    place: Place = ("template" if shows_documents else "user") if asked is None or asked == "auto" else asked
    return "system" if place == "user" and not has_user else place


def build(request: Request, conversation: Conversation, draft: Draft, place: Place) -> Request:
    """The request with the parts of the draft."""
    messages = request.messages or []
    kept = {
        number for turn, keep in zip(conversation.history, draft.turns, strict=True) if keep for number in turn.places
    }
    kept.update(conversation.system, conversation.last.places)
    chosen = [message for number, message in enumerate(messages) if number in kept]
    before = [draft.schema and SCHEMA + draft.schema]
    arguments = request.template_arguments
    if place == "template":
        if shown := [_variable(one) for one in (*draft.pinned, *draft.documents)]:
            arguments = {**arguments, "documents": shown}
    else:
        before.append(document_blocks([*draft.pinned, *(draft.documents if place == "system" else ())]))
    before.append(draft.summary and SUMMARY + draft.summary)
    chosen = _extend_system(chosen, "\n\n".join(text for text in before if text))
    if place == "user" and draft.documents:
        chosen = _extend_user(chosen, document_blocks(draft.documents))
    return replace(request, messages=chosen, template_arguments=arguments, context=None, documents=())


def document_blocks(documents: Sequence[PlacedDocument]) -> str:
    inner = "\n".join(block(one.document, one.text) for one in documents)
    return f"<documents>\n{inner}\n</documents>" if documents else ""


def _variable(one: PlacedDocument) -> dict[str, Any]:
    """As templates read it: most have title and text, some an id by either name."""
    document = one.document
    return {"id": document.id, "doc_id": document.id, "title": document.title or document.id, "text": one.text.strip()}


def _extend_system(messages: list[Message], text: str) -> list[Message]:
    if not text:
        return messages
    if messages and messages[0].get("role") == "system":
        return [_joined(messages[0], text, behind=True), *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _extend_user(messages: list[Message], text: str) -> list[Message]:
    place = max(number for number, message in enumerate(messages) if message.get("role") == "user")
    return [*messages[:place], _joined(messages[place], text, behind=False), *messages[place + 1 :]]


def _joined(message: Message, text: str, *, behind: bool) -> Message:
    content = message.get("content") or ""
    parts = [content, text] if behind else [text, content]
    return {**message, "content": "\n\n".join(one for one in parts if one)}
