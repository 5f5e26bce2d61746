"""The packed record of one engine step, on the Frame that carries the step's Deltas.

    header | per cache group: blocks | per admission | per preemption | per row | adapters of rows

The scheduler calls `pack` once per step, so it has to be fast; the observer calls `unpack`.
Times are `time.monotonic()` seconds of the reader's host (`shift_times`), spans are microseconds.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

# Wait reasons: why a sequence is not admitted yet. "step": only the step in flight; "budget", "slot" and "blocks" are
# what there was too little of; "prefix": another sequence computes its prefix; "constraint": its constraint is being
# compiled; "adapter": its adapter is being loaded; "share": tenants that have been served less go first; "fetch": its
# prefix is fetched from a lower tier of the cache. Readers take the names from here: positions may change.
WAITS = ("step", "budget", "slot", "blocks", "prefix", "constraint", "adapter", "share", "fetch")
STEP, BUDGET, SLOT, BLOCKS, PREFIX, CONSTRAINT, ADAPTER, SHARE, FETCH = range(len(WAITS))

# Why so much of a prompt was found in the prefix cache, and no more.
FINDINGS = ("none", "full", "diverged", "extends", "evicted", "too_short", "nothing_alike", "off", "not_read")
NONE, FULL, DIVERGED, EXTENDS, EVICTED, TOO_SHORT, NOTHING_ALIKE, OFF, NOT_READ = range(len(FINDINGS))

# A row's word is the number of tokens it computes. With the flag DECODE these are the newest token and drafts, and the
# bits from ACCEPTED_BIT on say how many drafts were right.
DECODE = 1 << 31
ACCEPTED_BIT = 15
TOKENS_OF_DECODE = (1 << ACCEPTED_BIT) - 1
LONGEST = 2**32 - 1  # span, in its unit

# Counts that only grow have 64 bits: a busy engine evicts 2^32 blocks within days.
_HEADER = struct.Struct(f"<QdIII{len(WAITS)}IIQBIIIBH")
_BLOCKS = struct.Struct("<IIIII")
_ADMISSION = struct.Struct(f"<IdI{len(WAITS)}IIIBIII")
_PREEMPTION = struct.Struct("<IB")


class Blocks(NamedTuple):
    """KV blocks of a cache group by state, as in `cache.Usage`."""

    held: int
    shared: int  # of the held ones, those held by more than one sequence
    resting: int
    cached: int
    free: int


class Finding(NamedTuple):
    """Explains a prefix lookup: why so much of a prompt was found in the cache, and no more."""

    reason: int = NONE  # index in FINDINGS
    matched: int = 0  # leading tokens that agree with the nearest prefix, cached or lately evicted
    evicted: int = 0  # of those, tokens that were cached and are not any more
    evicted_ms: int = 0  # how long ago


class Admission(NamedTuple):
    """A sequence gets a slot, for the first time or after a preemption."""

    number: int  # Submit.number
    since: float  # when it was queued: received, or preempted
    cached: int
    waits_us: tuple[int, ...]  # as in WAITS
    ahead: int  # sequences before it in the queue when it was queued
    overtaken: int  # at least so many later ones were admitted before it
    finding: Finding


class Preemption(NamedTuple):
    """A sequence gives its slot and blocks back, and is queued again."""

    number: int  # Submit.number
    why: int  # index in WAITS: what it was taken for; SHARE: a tenant that has been served less


class StepRecord(NamedTuple):
    """An unpacked record."""

    number: int  # of the step's plan
    start: float
    planned_us: int  # since `start`, as those below
    collected_us: int  # the results are on the host
    settled_us: int
    waits: tuple[int, ...]  # sequences that wait, by reason as in WAITS
    running: int
    evictions: int  # of cached blocks, since the engine started
    blocked: int  # index in WAITS: why the first in the queue was not admitted; STEP: the queue is empty
    blocks: list[Blocks]  # [groups], once the step was settled
    admissions: list[Admission]
    preemptions: list[Preemption]
    numbers: list[int]  # [rows] sequence number
    words: list[int]  # [rows]: see DECODE
    adapters: list[str]  # [rows] name of its adapter, "" without; empty: no row has one

    @property
    def waiting(self) -> int:
        return sum(self.waits)

    @property
    def tokens(self) -> int:
        return sum(word & TOKENS_OF_DECODE if word & DECODE else word for word in self.words)


def decode_word(drafted: int, accepted: int) -> int:
    """Of a row that decodes, with drafts."""
    return DECODE | accepted << ACCEPTED_BIT | 1 + drafted


def tokens_of(word: int) -> int:
    """How many tokens the row computes."""
    return word & TOKENS_OF_DECODE if word & DECODE else word


def drafts_of(word: int) -> tuple[int, int]:
    """How many tokens were drafted, and how many of those were right."""
    return ((word & TOKENS_OF_DECODE) - 1, (word & ~DECODE) >> ACCEPTED_BIT) if word & DECODE else (0, 0)


def pack_admission(entry: Admission) -> bytes:
    finding = entry.finding
    return _ADMISSION.pack(
        entry.number, entry.since, entry.cached, *entry.waits_us, entry.ahead, entry.overtaken,
        finding.reason, finding.matched, finding.evicted, finding.evicted_ms,
    )  # fmt: skip


def pack(
    number: int,
    start: float,
    spans_us: tuple[int, int, int],
    waits: tuple[int, ...],
    state: tuple[int, int, int],
    blocks: list[tuple[int, int, int, int, int]],
    admissions: list[bytes],
    preemptions: list[tuple[int, int]],
    rows: array[int],
    adapters: Sequence[str] = (),
) -> bytes:
    """`spans_us`, `waits` and `state` are the fields of StepRecord in order; `rows` is an array("I"): number, word,
    number, …; `adapters` as in StepRecord."""
    names = {name: place for place, name in enumerate(dict.fromkeys(("", *adapters)))} if adapters else {}
    header = _HEADER.pack(
        number, start, *spans_us, *waits, *state,
        len(rows) // 2, len(admissions), len(preemptions), len(blocks), len(names),
    )  # fmt: skip
    parts = [header, *(_BLOCKS.pack(*group) for group in blocks), *admissions]
    parts += [_PREEMPTION.pack(*entry) for entry in preemptions]
    parts.append(rows.tobytes())
    if names:
        parts += [array("H", [names[name] for name in adapters]).tobytes(), "\0".join(names).encode()]
    return b"".join(parts)


def unpack(data: bytes) -> StepRecord:
    """Unpack what `pack` packed."""
    number, start, *fields = _HEADER.unpack_from(data)
    spans_us, waits, rest = fields[:3], tuple(fields[3 : 3 + len(WAITS)]), fields[3 + len(WAITS) :]
    *state, rows, num_admissions, num_preemptions, groups, num_names = rest
    offset = _HEADER.size
    blocks = [Blocks._make(_BLOCKS.unpack_from(data, offset + index * _BLOCKS.size)) for index in range(groups)]
    offset += groups * _BLOCKS.size
    admissions = [_unpack_admission(data, offset + index * _ADMISSION.size) for index in range(num_admissions)]
    offset += num_admissions * _ADMISSION.size
    preemptions = [
        Preemption._make(_PREEMPTION.unpack_from(data, offset + index * _PREEMPTION.size))
        for index in range(num_preemptions)
    ]
    offset += num_preemptions * _PREEMPTION.size
    packed = array("I", data[offset : offset + 8 * rows])
    numbers, words = packed[::2].tolist(), packed[1::2].tolist()
    adapters = _unpack_adapters(data[offset + 8 * rows :], rows) if num_names else []
    lists = (blocks, admissions, preemptions, numbers, words, adapters)
    return StepRecord._make((number, start, *spans_us, waits, *state, *lists))


def shift_times(data: bytes, by_s: float) -> bytes:
    """A packed record with its instants moved, for another clock."""
    moved = bytearray(data)
    number, start, *fields = _HEADER.unpack_from(data)
    _HEADER.pack_into(moved, 0, number, start + by_s, *fields)
    num_admissions, groups = fields[-4], fields[-2]
    offset = _HEADER.size + groups * _BLOCKS.size
    for place in range(offset, offset + num_admissions * _ADMISSION.size, _ADMISSION.size):
        sequence, since, *rest = _ADMISSION.unpack_from(data, place)
        _ADMISSION.pack_into(moved, place, sequence, since + by_s, *rest)
    return bytes(moved)


def _unpack_adapters(data: bytes, rows: int) -> list[str]:
    """Indices of the rows' names, then the names."""
    names = data[2 * rows :].decode().split("\0")
    return [names[place] for place in array("H", data[: 2 * rows])]


def counts_by_reason(counts: dict[int, int]) -> tuple[int, ...]:
    """`StepRecord.waits` of these counts."""
    return tuple(counts.get(reason, 0) for reason in range(len(WAITS)))


def micros(seconds: float) -> int:
    return _span(seconds * 1e6)


def millis(seconds: float) -> int:
    return _span(seconds * 1e3)


def _span(units: float) -> int:
    value = int(units + 0.5)
    return value if 0 <= value <= LONGEST else 0 if value < 0 else LONGEST


def _unpack_admission(data: bytes, offset: int) -> Admission:
    number, since, cached, *rest = _ADMISSION.unpack_from(data, offset)
    waits_us, (ahead, overtaken, *finding) = tuple(rest[: len(WAITS)]), rest[len(WAITS) :]
    return Admission(number, since, cached, waits_us, ahead, overtaken, Finding(*finding))
