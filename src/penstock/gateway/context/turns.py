"""The turns of a conversation, and which of them a history policy keeps.

A turn is a user's message with all that follows until the next: answers, tool calls and their results stay together.
System messages belong to no turn and always stay. The last turn is the one to be answered; it is no history.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.flow import Message
from penstock.gateway.context.texts import message_text

STEPS = 4  # history is dropped in steps of this part of the prompt
CHARS_PER_TOKEN = 4
UNCOUNTED = 1e12  # tokens of a turn that is too long to be counted: more than any room


class Turn(msgspec.Struct, frozen=True):
    places: tuple[int, ...]  # of its messages in the request
    text: str


class Conversation(msgspec.Struct, frozen=True):
    system: tuple[int, ...]  # places of system messages
    history: tuple[Turn, ...]
    last: Turn


class TurnCost(msgspec.Struct, frozen=True):
    tokens: int | None  # of its text; None: it is too long to be counted
    markup: int  # of the template around its messages, about
    characters: int


def split(messages: Sequence[Message]) -> Conversation:
    system = tuple(place for place, one in enumerate(messages) if one.get("role") == "system")
    groups: list[list[int]] = []
    last_role = None
    for place, message in enumerate(messages):
        if (role := message.get("role")) == "system":
            continue
        starts_turn = role == "user" and last_role != "user"  # several messages of the user in a row are one
        if not groups or starts_turn:
            groups.append([])
        groups[-1].append(place)
        last_role = role
    if groups and not any(messages[place].get("role") == "user" for place in groups[-1]):
        groups = [[place for group in groups for place in group]]
    turns = [Turn(tuple(group), "\n".join(message_text(messages[place]) for place in group)) for group in groups]
    return Conversation(system, tuple(turns[:-1]), turns[-1] if turns else Turn((), ""))


def choose_turns(
    costs: Sequence[TurnCost], *, room: int, budget: int | None, first: int = 0, step_characters: int = 1
) -> list[bool]:
    """Which turns are kept: the `first` ones, and the newest from some turn on. `room` bounds their tokens with markup,
    `budget` those without.

    The beginning moves in steps of about `step_characters`, counted from the beginning of the conversation, so that it
    stays the same over several requests of a growing conversation.
    """

    number = len(costs)
    texts, whole = _sums([cost.tokens for cost in costs]), _sums([_with_markup(cost) for cost in costs])

    def fits(pinned: int, start: int) -> bool:
        """Whether the turns before `pinned` and those from `start` on have room."""
        text, all_tokens = (sums[number] - sums[start] + sums[pinned] for sums in (texts, whole))
        return all_tokens <= room and (budget is None or text <= budget)

    if fits(0, 0):
        return [True] * number
    pinned = min(first, number)
    while pinned and not fits(pinned, number):
        pinned -= 1
    candidates = [place for place in (*_starts(costs, step_characters), *range(number)) if place > pinned]
    start = next((place for place in candidates if fits(pinned, place)), number)
    return [place < pinned or place >= start for place in range(number)]


def _with_markup(cost: TurnCost) -> int | None:
    return None if cost.tokens is None else cost.tokens + cost.markup


def _sums(tokens: Sequence[int | None]) -> list[float]:
    """Of the first n, for each n."""
    sums = [0.0]
    for one in tokens:
        sums.append(sums[-1] + (UNCOUNTED if one is None else one))
    return sums


def _starts(costs: Sequence[TurnCost], step: int) -> list[int]:
    """The first turn that begins in each step."""
    starts, before = [], 0
    for place, cost in enumerate(costs):
        if place and before // step > (before - costs[place - 1].characters) // step:
            starts.append(place)
        before += cost.characters
    return starts
