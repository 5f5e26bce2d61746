"""What the frontend's side of a link says for an engine that has died."""

from __future__ import annotations

from penstock.errors import EngineDied
from penstock.flow import Delta, FinishReason, Frame, Reply


def terminal_messages(why: str, sequences: set[str], queries: set[int]) -> list[Frame | Reply]:
    """A terminal Delta of each open sequence and a Reply to each open query, once: empties both."""
    deltas = [Delta(id=name, finish=FinishReason.ERROR, error=why, code=EngineDied.code) for name in sorted(sequences)]
    replies = [Reply(number, error=why) for number in sorted(queries)]
    sequences.clear()
    queries.clear()
    return [*([Frame(deltas)] if deltas else []), *replies]
