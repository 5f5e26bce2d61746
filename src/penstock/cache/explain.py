"""Explains a prefix lookup: the nearest prefix that is cached, or was lately, and the exact token at which the prompt
diverges from it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from penstock.cache.eviction_history import EvictionHistory
from penstock.cache.prefix_chain import PrefixChain
from penstock.flow import record
from penstock.flow.prefix import TOKEN_BYTES, pack_tokens
from penstock.flow.record import Finding


class RunningPrefixes:
    """Blocks that running sequences compute now and have not published: of each sequence the next one to settle."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, list[tuple[Sequence[int], int, int]]] = {}  # by parent: tokens, begin, end
        self._packed: dict[bytes, list[bytes]] = {}  # by parent, sorted: made when asked for

    def add(self, chain: PrefixChain, tokens: Sequence[int], settled: int) -> None:
        size = chain.block_size
        full = settled // size
        if full <= len(chain.links):
            parent, begin = chain.parent_of(full), full * size
            if parent in self._packed:
                insort(self._packed[parent], pack_tokens(tokens[begin : begin + size]))
            else:
                self._blocks.setdefault(parent, []).append((tokens, begin, begin + size))

    def neighbours(self, parent: bytes, packed: bytes) -> list[bytes]:
        """As in EvictionHistory."""
        if parent not in self._packed:
            blocks = self._blocks.pop(parent, ())
            self._packed[parent] = sorted(pack_tokens(tokens[begin:end]) for tokens, begin, end in blocks)
        known = self._packed[parent]
        at = bisect_left(known, packed)
        return known[max(0, at - 1) : at + 1]


def explain(
    chain: PrefixChain,
    tokens: Sequence[int],
    hit: int,
    history: EvictionHistory,
    running: Callable[[], RunningPrefixes],
) -> Finding:
    """`chain` has links for all full blocks of `tokens`, of which the first `hit` were found. `running` is called only
    if more could have been found."""
    size = chain.block_size
    usable = (len(tokens) - 1) // size  # blocks: never the one that holds the last token
    if usable == 0:
        return Finding(record.TOO_SHORT)
    if hit == usable * size:
        return Finding(record.FULL, hit)
    full, evicted_at = hit // size, None
    while full < len(chain.links) and history.knows(chain.links[full]):
        ghost = history.ghost(chain.links[full].key)
        if ghost is not None and ghost.evicted:
            evicted_at = ghost.since if evicted_at is None else max(evicted_at, ghost.since)
        full += 1
    evicted = full * size - hit
    inside, alike = _nearest(chain, full, tokens[full * size : (full + 1) * size], history, running())
    matched = min(full * size + inside, len(tokens))
    age_ms = 0 if evicted_at is None else record.millis(history.clock() - evicted_at)
    if evicted:
        return Finding(record.EVICTED, matched, evicted, age_ms)
    if not matched:
        return Finding(record.NOTHING_ALIKE)
    return Finding(record.DIVERGED if alike else record.EXTENDS, matched)


def _nearest(
    chain: PrefixChain, full: int, own: Sequence[int], history: EvictionHistory, running: RunningPrefixes
) -> tuple[int, bool]:
    """How many of the `own` tokens behind the first `full` blocks another sequence has too, and whether the two
    diverge: both go on, with different tokens."""
    parent, packed = chain.parent_of(full), pack_tokens(own)
    others = [link.packed for link in history.neighbours(parent, packed)] + running.neighbours(parent, packed)
    best, diverges = 0, False
    for other in others:
        common = _common(packed, other)
        differs = common < len(own) and common < len(other) // TOKEN_BYTES
        if common > best or (common == best and differs):
            best, diverges = common, differs
    return best, diverges


def _common(first: bytes, second: bytes) -> int:
    """The number of leading tokens that are equal."""
    length = min(len(first), len(second)) // TOKEN_BYTES
    for index in range(length):
        at = slice(index * TOKEN_BYTES, (index + 1) * TOKEN_BYTES)
        if first[at] != second[at]:
            return index
    return length
