"""Lists that come page by page, with cursors: the id of an entry, as OpenAI's lists have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

from penstock.gateway.keys.records import KeyState
from penstock.http.parse.query import Parameter

Entry = TypeVar("Entry")

LIMIT = Parameter(name="limit", description="Most entries of a page.", type="integer", bounds=(1, 1000), default=100)
AFTER = Parameter(name="after", description="The id of the entry behind which the page begins.")
SEARCH = Parameter(name="search", description="Part of the id or name of a key, or of the name of its tenant.")
STATE = Parameter(name="state", description="Only keys in this state.", choices=get_args(KeyState))


def cut_page(
    entries: Sequence[Entry], limit: int, id_of: Callable[[Entry], str]
) -> tuple[Sequence[Entry], dict[str, Any]]:
    """Of `limit` + 1 entries, if there are so many: those of the page, and what the answer says about it."""
    shown = entries[:limit]
    first, last = (id_of(shown[0]), id_of(shown[-1])) if shown else (None, None)
    return shown, {"first_id": first, "last_id": last, "has_more": len(entries) > limit}
