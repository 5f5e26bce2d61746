"""The record of one engine step, packed: what the scheduler knew, on the Frame that carries the step's news anyway.

    header | per cache group: blocks | per sequence let in | per sequence sent back | per row

Both ends are here: `pack` is called by the scheduler, once per step, and has to be quick; `unpack` by whoever shows it.
Times are `time.monotonic()` seconds, spans are microseconds.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

# What keeps a sequence from being let in. "step": nothing but the step under way; "prefix": another one is computing
# what it begins with; "constraint": its own is being compiled; the others are what was short.
WAITS = ("step", "budget", "slot", "blocks", "prefix", "constraint")
STEP, BUDGET, SLOT, BLOCKS, PREFIX, CONSTRAINT = range(len(WAITS))

# Why as much, or as little, of a prompt was found in the prefix cache.
FINDINGS = ("none", "full", "diverged", "extends", "evicted", "too_short", "nothing_alike", "off", "not_read")
NONE, FULL, DIVERGED, EXTENDS, EVICTED, TOO_SHORT, NOTHING_ALIKE, OFF, NOT_READ = range(len(FINDINGS))

DECODE = 1 << 31  # in a row's word: one token that follows from the output so far; the rest is the count of tokens
LONGEST = 2**32 - 1  # span, in whatever unit

# Counts that only grow have 64 bits: a busy engine evicts 2^32 blocks within days.
_HEADER = struct.Struct("<QdIIIIIIIQBIIIB")
_BLOCKS = struct.Struct("<IIIII")
_LET_IN = struct.Struct("<IdIIIIIIIIIBIII")
_SENT_BACK = struct.Struct("<IB")


class Blocks(NamedTuple):
    """How many KV blocks of a cache group are in which state, as `cache.Usage` has them."""

    held: int
    shared: int  # of the held ones, by more than one sequence
    resting: int
    cached: int
    free: int


class Finding(NamedTuple):
    """Why so much of a prompt was found in the prefix cache, and no more."""

    reason: int = NONE  # index in FINDINGS
    matched: int = 0  # leading tokens that agree with the nearest prefix, cached or lately evicted
    evicted: int = 0  # of those, tokens that were cached and are not any more
    evicted_ms: int = 0  # how long ago


class LetIn(NamedTuple):
    """A sequence is admitted: it takes a slot, for the first time or again."""

    number: int  # Submit.number
    since: float  # when it got in line: received, or sent back
    cached: int
    waits_us: tuple[int, ...]  # as in WAITS
    ahead: int  # sequences that were before it in line when it came
    overtaken: int  # at least so many were let in that came later
    finding: Finding


class SentBack(NamedTuple):
    """A sequence is preempted: it gives its slot and blocks back, and gets in line again."""

    number: int  # Submit.number
    why: int  # index in WAITS


class StepRecord(NamedTuple):
    """What `unpack` gives."""

    number: int  # of the step's plan
    start: float
    planned_us: int  # since `start`, as those below
    collected_us: int  # the results are on the host
    settled_us: int
    running: int
    waiting: int
    parked: int  # of those that wait, for a prefix
    held: int  # and for their constraints
    evictions: int  # of cached blocks, since the engine started
    blocked: int  # index in WAITS: why the first in line was not let in; STEP: nobody waits in line
    blocks: list[Blocks]  # [groups], once the step was settled
    let_in: list[LetIn]
    sent_back: list[SentBack]
    numbers: list[int]  # [rows] whose each row is
    words: list[int]  # [rows] tokens, and DECODE

    @property
    def tokens(self) -> int:
        return sum(word & ~DECODE for word in self.words)


def pack_let_in(entry: LetIn) -> bytes:
    finding = entry.finding
    return _LET_IN.pack(
        entry.number, entry.since, entry.cached, *entry.waits_us, entry.ahead, entry.overtaken,
        finding.reason, finding.matched, finding.evicted, finding.evicted_ms,
    )  # fmt: skip


def pack(
    number: int,
    start: float,
    spans_us: tuple[int, int, int],
    state: tuple[int, int, int, int, int, int],
    blocks: list[tuple[int, int, int, int, int]],
    let_in: list[bytes],
    sent_back: list[tuple[int, int]],
    rows: array[int],
) -> bytes:
    """`spans_us` and `state` are the fields of StepRecord in order; `rows` is an array("I"): number, word, number, …"""
    header = _HEADER.pack(number, start, *spans_us, *state, len(rows) // 2, len(let_in), len(sent_back), len(blocks))
    parts = [header, *(_BLOCKS.pack(*group) for group in blocks), *let_in]
    parts += [_SENT_BACK.pack(*entry) for entry in sent_back]
    parts.append(rows.tobytes())
    return b"".join(parts)


def unpack(data: bytes) -> StepRecord:
    """What `pack` has made."""
    *plain, rows, num_let_in, num_sent_back, groups = _HEADER.unpack_from(data)
    offset = _HEADER.size
    blocks = [Blocks._make(_BLOCKS.unpack_from(data, offset + index * _BLOCKS.size)) for index in range(groups)]
    offset += groups * _BLOCKS.size
    let_in = [_let_in(data, offset + index * _LET_IN.size) for index in range(num_let_in)]
    offset += num_let_in * _LET_IN.size
    sent_back = [
        SentBack._make(_SENT_BACK.unpack_from(data, offset + index * _SENT_BACK.size)) for index in range(num_sent_back)
    ]
    offset += num_sent_back * _SENT_BACK.size
    packed = array("I", data[offset : offset + 8 * rows])
    return StepRecord._make((*plain, blocks, let_in, sent_back, packed[::2].tolist(), packed[1::2].tolist()))


def micros(seconds: float) -> int:
    return _span(seconds * 1e6)


def millis(seconds: float) -> int:
    return _span(seconds * 1e3)


def _span(units: float) -> int:
    value = int(units + 0.5)
    return value if 0 <= value <= LONGEST else 0 if value < 0 else LONGEST


def _let_in(data: bytes, offset: int) -> LetIn:
    number, since, cached, *rest = _LET_IN.unpack_from(data, offset)
    waits_us, (ahead, overtaken, *finding) = tuple(rest[: len(WAITS)]), rest[len(WAITS) :]
    return LetIn(number, since, cached, waits_us, ahead, overtaken, Finding(*finding))
