"""GET /v1/responses/{id}/input_items: the input items of a response, in pages."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.http.api.responses.item_schemas import Input, Item, MessageItem
from penstock.http.api.responses.response_bodies import InputItems
from penstock.system import typed

_encode = msgspec.json.Encoder().encode


class _Identified(msgspec.Struct):
    id: str


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


def input_items(sent: Input | None, name: str, before: bytes | None = None, answer: bytes | None = None) -> bytes:
    """A JSON list of the items of a request as they are listed later: each with an id, which begins with `name` where
    the client sent none. `before` and `answer` are the list and the body of the previous response."""
    earlier = typed.decode_json(before, list[msgspec.Raw]) if before is not None else []
    if answer is not None:
        earlier += typed.decode_json(answer, _Output).output
    if isinstance(sent, str):
        sent = [MessageItem.model_construct(role="user", content=sent)]
    return _encode([*earlier, *[_list_item(item, f"{name}_{place}") for place, item in enumerate(sent or ())]])


def page(items: bytes, *, after: str | None, limit: int, order: str) -> bytes:
    listed = typed.decode_json(items, list[msgspec.Raw])
    if order == "desc":
        listed.reverse()
    ids = [typed.decode_json(item, _Identified).id for item in listed]
    if after is not None and after not in ids:
        raise InvalidRequest(f"after is {after[:64]!r}, but no item of this response has that id", param="after")
    start = 0 if after is None else ids.index(after) + 1
    shown = ids[start : start + limit]
    return _encode(
        InputItems(
            data=listed[start : start + limit],
            first_id=shown[0] if shown else None,
            last_id=shown[-1] if shown else None,
            has_more=start + limit < len(ids),
        )
    )


def _list_item(item: Item, name: str) -> dict[str, Any]:
    listed = item.model_dump(exclude_none=True)
    if isinstance(item, MessageItem):
        listed |= {"type": "message", "content": _parts(item)}
    return {"id": name, "status": "completed", **listed}


def _parts(item: MessageItem) -> list[dict[str, Any]]:
    kind = "output_text" if item.role == "assistant" else "input_text"
    parts = (
        [{"type": kind, "text": item.content}]
        if isinstance(item.content, str)
        else [part.model_dump(exclude_none=True) for part in item.content]
    )
    return [{"annotations": [], **part} if part["type"] == "output_text" else part for part in parts]
