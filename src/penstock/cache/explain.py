"""Why so much of a prompt was found in the cache, and no more: the nearest prefix that is cached or lately was, and the
exact token at which the prompt leaves it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from penstock.cache.eviction_history import Recall
from penstock.cache.prefix import Chain
from penstock.flow import record
from penstock.flow.prefix import TOKEN_BYTES, pack_tokens
from penstock.flow.record import Finding


class Kin:
    """What running sequences compute now, which cannot be found yet: of each the block behind those it has settled."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, list[tuple[Sequence[int], int, int]]] = {}  # by parent: where in whose tokens
        self._packed: dict[bytes, list[bytes]] = {}  # of the parents asked for: what is there, in order

    def add(self, chain: Chain, tokens: Sequence[int], settled: int) -> None:
        size = chain.block_size
        full = settled // size
        if full <= len(chain.links):
            parent, begin = chain.parent_of(full), full * size
            if parent in self._packed:
                insort(self._packed[parent], pack_tokens(tokens[begin : begin + size]))
            else:
                self._blocks.setdefault(parent, []).append((tokens, begin, begin + size))

    def neighbours(self, parent: bytes, packed: bytes) -> list[bytes]:
        """As those of Recall."""
        if parent not in self._packed:
            blocks = self._blocks.pop(parent, ())
            self._packed[parent] = sorted(pack_tokens(tokens[begin:end]) for tokens, begin, end in blocks)
        known = self._packed[parent]
        at = bisect_left(known, packed)
        return known[max(0, at - 1) : at + 1]


def explain(chain: Chain, tokens: Sequence[int], hit: int, recall: Recall, kin: Callable[[], Kin]) -> Finding:
    """`chain` has links for all full blocks of `tokens`, of which the first `hit` were found. `kin` is asked for only
    if that was not all."""
    size = chain.block_size
    usable = (len(tokens) - 1) // size  # blocks: never the one that holds the last token
    if usable == 0:
        return Finding(record.TOO_SHORT)
    if hit == usable * size:
        return Finding(record.FULL, hit)
    full, gone_since = hit // size, None
    while full < len(chain.links) and recall.knows(chain.links[full]):
        ghost = recall.ghost(chain.links[full].key)
        if ghost is not None and ghost.evicted:
            gone_since = ghost.since if gone_since is None else max(gone_since, ghost.since)
        full += 1
    evicted = full * size - hit
    inside, alike = _nearest(chain, full, tokens[full * size : (full + 1) * size], recall, kin())
    matched = min(full * size + inside, len(tokens))
    age_ms = 0 if gone_since is None else record.millis(recall.clock() - gone_since)
    if evicted:
        return Finding(record.EVICTED, matched, evicted, age_ms)
    if not matched:
        return Finding(record.NOTHING_ALIKE)
    return Finding(record.DIVERGED if alike else record.EXTENDS, matched)


def _nearest(chain: Chain, full: int, own: Sequence[int], recall: Recall, kin: Kin) -> tuple[int, bool]:
    """How many of the `own` tokens behind the first `full` blocks somebody else has there too, and whether the two
    really part: both go on, and differently."""
    parent, packed = chain.parent_of(full), pack_tokens(own)
    others = [link.packed for link in recall.neighbours(parent, packed)] + kin.neighbours(parent, packed)
    best, parts = 0, False
    for other in others:
        common = _common(packed, other)
        differs = common < len(own) and common < len(other) // TOKEN_BYTES
        if common > best or (common == best and differs):
            best, parts = common, differs
    return best, parts


def _common(first: bytes, second: bytes) -> int:
    """Tokens at the beginning that are equal."""
    length = min(len(first), len(second)) // TOKEN_BYTES
    for index in range(length):
        at = slice(index * TOKEN_BYTES, (index + 1) * TOKEN_BYTES)
        if first[at] != second[at]:
            return index
    return length
