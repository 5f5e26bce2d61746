"""Stored chat completions (`store: true`): lists, updates and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from pydantic import Field

from penstock.errors import InvalidRequest
from penstock.http.api.chat_messages import AnyMessage
from penstock.http.api.fields import StrictModel
from penstock.http.api.generation_fields import Metadata
from penstock.http.api.response_bodies import Body
from penstock.system import typed

_encode = msgspec.json.Encoder().encode


class StoredUpdate(StrictModel):
    metadata: Metadata | None = Field(description="The client's own notes, instead of those there were.")


class StoredList(Body, kw_only=True, frozen=True):
    """Of completions, or of the messages of one."""

    object: Literal["list"] = "list"
    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredDeleted(Body, kw_only=True, frozen=True):
    object: Literal["chat.completion.deleted"] = "chat.completion.deleted"
    id: str
    deleted: bool = True


class _Head(msgspec.Struct):
    """The fields that completions are filtered by."""

    id: str
    created: int
    model: str
    metadata: dict[str, str] | None = None


def encode_messages(given: Sequence[AnyMessage], name: str) -> bytes:
    """The messages of a request as they are listed later: each with an id, which begins with `name`."""
    return _encode(
        [{"id": f"{name}-{place}", **message.model_dump(exclude_none=True)} for place, message in enumerate(given)]
    )


def message_page(messages: bytes, **page: Any) -> bytes:
    listed = typed.decode_json(messages, list[msgspec.Raw])
    return _page([(msgspec.json.decode(item)["id"], bytes(item)) for item in listed], **page)


def completion_page(bodies: Sequence[bytes], *, model: str | None, metadata: Mapping[str, str], **page: Any) -> bytes:
    """Those of this model with all of this metadata, by creation time."""
    heads = [(typed.decode_json(body, _Head), body) for body in bodies]
    found = [
        (head.created, head.id, body)
        for head, body in heads
        if model in (None, head.model) and metadata.items() <= (head.metadata or {}).items()
    ]
    return _page([(name, body) for _, name, body in sorted(found)], **page)


def with_metadata(body: bytes, metadata: Mapping[str, str] | None) -> bytes:
    fields = typed.decode_json(body, dict[str, msgspec.Raw])
    return _encode({**fields, "metadata": metadata})


def encode_deleted(name: str) -> bytes:
    return _encode(StoredDeleted(id=name))


def _page(entries: list[tuple[str, bytes]], *, after: str | None, limit: int, order: str) -> bytes:
    if order == "desc":
        entries.reverse()
    names = [name for name, _ in entries]
    if after is not None and after not in names:
        raise InvalidRequest(f"after is {after[:64]!r}, but no entry has that id", param="after")
    start = 0 if after is None else names.index(after) + 1
    shown = entries[start : start + limit]
    return _encode(
        StoredList(
            data=[msgspec.Raw(text) for _, text in shown],
            first_id=shown[0][0] if shown else None,
            last_id=shown[-1][0] if shown else None,
            has_more=start + limit < len(entries),
        )
    )
