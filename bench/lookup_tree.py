"""What a tree of drafts could gain over a chain, for `bench/lookup_bound.py`: several continuations of what occurred
before in one step, each token a row of it, of which the path that the answer takes counts.

A tree has the continuations of the newest occurrences of the last token. Its nodes are added the likeliest first. How
likely one is right, by the length of the match and its rank among its siblings, is counted in these very answers: an
engine, which cannot know that, would gain less. The same rules with the first child of each node alone make chains.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

CANDIDATES = 16  # newest occurrences
LONGEST = 32  # tokens of a match
MOST_NODES = 15
RANKS = 4  # children that are told apart by their rank; later ones are like the last

Answers = Sequence[tuple[list[int], list[int]]]
Occurrence = tuple[int, int]  # the position behind it, and how many tokens are the same
Chances = Mapping[tuple[int, int], float]  # kind of match, rank -> how often such a child is right


class Gains(NamedTuple):
    """Times as fast as without drafts."""

    ruled: float  # with as many nodes as are likely to save the most
    known: float  # with as many as turn out best


class Place(NamedTuple):
    """A position behind the first token of an answer, and what ended as the text does there."""

    whole: list[int]
    end: int
    occurrences: list[Occurrence]

    def children(self, occurrences: list[Occurrence], depth: int) -> list[list[Occurrence]]:
        """By the token `depth` behind them: longest matches first, then what most occurrences go on with."""
        grouped: defaultdict[int, list[Occurrence]] = defaultdict(list)
        for place, same in occurrences:
            if place + depth < self.end:
                grouped[self.whole[place + depth]].append((place, same))
        return sorted(grouped.values(), key=lambda group: (max(same for _, same in group), len(group)), reverse=True)

    def is_right(self, group: list[Occurrence], depth: int) -> bool:
        return self.end + depth < len(self.whole) and self.whole[group[0][0] + depth] == self.whole[self.end + depth]


class Step(NamedTuple):
    """By its nodes, none at first, in the order in which they are added."""

    right: list[int]  # tokens of the answer on the tree
    likely: list[float]  # as many are expected


def gains(answers: Answers, costs: Sequence[float], branches: int) -> Gains:
    """`costs`: of a step by its tokens, from 1 on, in plain steps. `branches`: children of a node; 1 makes chains."""
    chances, tokens, ruled, known = _chances(answers), 0, 0.0, 0.0
    for prompt, answer in answers:
        whole = prompt + answer
        first, steps = len(prompt) + 1, [_step(place, chances, branches) for place in _places(whole, len(prompt))]
        tokens += len(answer) - 1
        ruled += _ruled_time(steps, costs)
        known += _least_time(steps, costs)
        assert len(steps) == len(whole) - first
    return Gains(tokens / ruled, tokens / known)


def _places(whole: list[int], prompt: int) -> Iterator[Place]:
    behind: defaultdict[int, list[int]] = defaultdict(list)
    for end in range(1, len(whole)):
        newest = behind[whole[end - 1]]
        if end > prompt:
            yield Place(whole, end, [(place, _same(whole, place, end)) for place in newest[-CANDIDATES:]])
        newest.append(end)


def _same(whole: list[int], place: int, end: int) -> int:
    most = min(place, LONGEST)
    return next((n for n in range(most) if whole[place - 1 - n] != whole[end - 1 - n]), most)


def _kind(occurrences: list[Occurrence], depth: int) -> int:
    same = max(same for _, same in occurrences) + depth
    return (same > 1) + (same > 2) + (same > 4) + (same > 7) + (same > 15)


def _chances(answers: Answers) -> Chances:
    right, found = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for prompt, answer in answers:
        for place in _places(prompt + answer, len(prompt)):
            occurrences, depth = place.occurrences, 0
            while occurrences and depth < MOST_NODES:
                groups, kind, occurrences = place.children(occurrences, depth), _kind(occurrences, depth), []
                for rank, group in enumerate(groups):
                    key = kind, min(rank, RANKS - 1)
                    found[key] += 1
                    if place.is_right(group, depth):
                        right[key] += 1
                        occurrences = group
                depth += 1
    return {key: right[key] / count for key, count in found.items()}


def _step(place: Place, chances: Chances, branches: int) -> Step:
    right, likely = [0], [0.0]
    waiting: list[tuple[float, int, int, bool, list[Occurrence]]] = []

    def add_children(chance: float, depth: int, on_path: bool, occurrences: list[Occurrence]) -> None:
        for rank, group in enumerate(place.children(occurrences, depth)[:branches]):
            of_it = chance * chances.get((_kind(occurrences, depth), min(rank, RANKS - 1)), 0.0)
            entry = -of_it, len(right) * MOST_NODES + rank, depth, on_path and place.is_right(group, depth), group
            heapq.heappush(waiting, entry)

    add_children(1.0, 0, True, place.occurrences)
    while waiting and len(right) <= MOST_NODES:
        chance, _, depth, on_path, group = heapq.heappop(waiting)
        right.append(right[-1] + on_path)
        likely.append(likely[-1] - chance)
        add_children(-chance, depth + 1, on_path, group)
    return Step(right, likely)


def _ruled_time(steps: list[Step], costs: Sequence[float]) -> float:
    position, time = 0, 0.0
    while position < len(steps):
        step = steps[position]
        nodes = max(range(len(step.likely)), key=lambda count: step.likely[count] - costs[count])
        position += min(step.right[nodes] + 1, len(steps) - position)
        time += costs[nodes]
    return time


def _least_time(steps: list[Step], costs: Sequence[float]) -> float:
    times = [float("inf")] * len(steps) + [0.0]
    for position in range(len(steps) - 1, -1, -1):
        for nodes, right in enumerate(steps[position].right):
            reached = min(position + right + 1, len(steps))
            times[position] = min(times[position], costs[nodes] + times[reached])
    return times[0]
