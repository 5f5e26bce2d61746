"""A window of a replica's steps, as columns and rows for a timeline."""

from __future__ import annotations

from typing import Any

from penstock.flow.identity import Source
from penstock.flow.record import DECODE, STEP, WAITS, StepRecord, drafts_of, tokens_of
from penstock.observe.trace.journal import Journal

MAX_COLUMNS = 5000


def step_window(
    journal: Journal,
    begin: int,
    end: int,
    columns: int,
    *,
    rows: bool = True,
    tenant: str = "",
    source: Source | None = None,
) -> dict[str, Any]:
    """Steps begin .. end of a replica, as far as they are kept; several share a column if there are more of them than
    `columns`. Columns count the sequences of all tenants; rows, marks and sequences are the tenant's own.

    Without `rows` it has only columns: for an overview of very many steps. `source` None: the journal's default.
    """
    steps = journal.replica(source).steps
    begin, end = max(begin, steps.first), min(end, steps.last)
    stride = max(1, -(-(end - begin + 1) // columns))
    records = list(steps.between(begin, end))
    shown = columns_of(journal, records, stride, rows_too=rows, tenant=tenant, source=source)
    return shown | {"from": begin, "to": end}


def columns_of(
    journal: Journal,
    records: list[StepRecord],
    stride: int,
    *,
    rows_too: bool = True,
    tenant: str = "",
    source: Source | None = None,
) -> dict[str, Any]:
    """These steps, `stride` of them to a column; the other arguments as of `step_window`."""
    replica = journal.replica(source)
    groups = [records[place : place + stride] for place in range(0, len(records), stride)]
    rows: dict[str, list[int]] = {"column": [], "seq": [], "tokens": [], "kind": [], "drafted": [], "accepted": []}
    marks: list[dict[str, Any]] = []
    seen: set[int] = set()
    adapters: dict[int, str] = {}
    for column, group in enumerate(groups if rows_too else ()):
        tokens: dict[int, int] = {}
        decodes: dict[int, bool] = {}
        drafts: dict[int, tuple[int, int]] = {}
        for step in group:
            for number, word in zip(step.numbers, step.words, strict=True):
                if not journal.sequences.owned_by(tenant, number):
                    continue
                tokens[number] = tokens.get(number, 0) + tokens_of(word)
                decodes[number] = decodes.get(number, True) and bool(word & DECODE)
                before, found = drafts.get(number, (0, 0)), drafts_of(word)
                drafts[number] = (before[0] + found[0], before[1] + found[1])
            adapters.update((number, name) for number, name in zip(step.numbers, step.adapters, strict=False) if name)
            marks += [mark for mark in _marks(journal, column, step) if journal.sequences.owned_by(tenant, mark["seq"])]
        seen.update(tokens)
        rows["column"] += [column] * len(tokens)
        rows["seq"] += tokens
        rows["tokens"] += tokens.values()
        rows["kind"] += [int(flag) for flag in decodes.values()]
        rows["drafted"] += [drafted for drafted, _ in drafts.values()]
        rows["accepted"] += [accepted for _, accepted in drafts.values()]
    seen.update(mark["seq"] for mark in marks)
    if rows_too:
        begin = records[0].start if records else journal.clock()
        seen.update(_waiting_sequences(journal, begin, tenant, replica.source))
    return {
        "first": replica.steps.first,
        "last": replica.steps.last,
        "from": records[0].number if records else replica.steps.last + 1,
        "to": records[-1].number if records else replica.steps.last,
        "stride": stride,
        "steps": _columns(journal, groups),
        "rows": rows,
        "marks": marks,
        "sequences": _sequences(journal, seen, adapters),
    }


def _columns(journal: Journal, groups: list[list[StepRecord]]) -> dict[str, list[Any]]:
    def sum_column(name: str) -> list[int]:
        return [sum(getattr(step, name) for step in group) for group in groups]

    lasts = [group[-1] for group in groups]
    collected = [sum(step.collected_us - step.planned_us for step in group) for group in groups]
    settled = [sum(step.settled_us - step.collected_us for step in group) for group in groups]
    return {
        "number": [group[0].number for group in groups],
        "start": [journal.at(group[0].start) for group in groups],
        "us": sum_column("settled_us"),
        "plan_us": sum_column("planned_us"),
        "forward_us": collected,
        "settle_us": settled,
        "tokens": sum_column("tokens"),
        "rows": [max(len(step.words) for step in group) for group in groups],
        "running": [step.running for step in lasts],
        "waiting": [step.waiting for step in lasts],
        "held": [step.blocks[0].held for step in lasts],
        "free": [step.blocks[0].free for step in lasts],
        "cached": [step.blocks[0].cached for step in lasts],
        "blocked": [None if step.blocked == STEP else WAITS[step.blocked] for step in lasts],
    }


def _marks(journal: Journal, column: int, step: StepRecord) -> list[dict[str, Any]]:
    marks = [_mark(column, step, entry.number, "admitted", cached=entry.cached) for entry in step.admissions]
    marks += [_mark(column, step, number, "preempted", why=WAITS[why]) for number, why in step.preemptions]
    for number in step.numbers:
        found = journal.sequences.find(number)
        if found is not None and found[1].last_step == step.number and found[1].finish is not None:
            marks.append(_mark(column, step, number, "finished", why=found[1].finish))
    return marks


def _mark(
    column: int, step: StepRecord, number: int, kind: str, *, why: str | None = None, cached: int | None = None
) -> dict[str, Any]:
    return {"column": column, "step": step.number, "seq": number, "kind": kind, "why": why, "cached": cached}


def _waiting_sequences(journal: Journal, begin: float, tenant: str, source: Source) -> list[int]:
    """A tenant's sequences at a replica that still waited when the window began, or came later, and have no row yet."""
    return [
        sequence.number
        for request in list(journal.open.values())  # copied: this may be another thread
        for sequence in request.sequences
        if request.tenant == tenant
        and request.source == source
        and (sequence.waiting or (sequence.admitted is not None and sequence.admitted >= begin))
    ]


def _sequences(journal: Journal, numbers: set[int], adapters: dict[int, str]) -> dict[int, dict[str, Any]]:
    """`adapters`: of the rows, as the engine recorded them. A sequence that still waits has its request's."""
    at = journal.at
    shown = {}
    for number in sorted(numbers):
        found = journal.sequences.find(number)
        if found is None:
            continue
        request, sequence = found
        shown[number] = {
            "request": request.number,
            "id": request.id,
            "kind": request.kind,
            "adapter": adapters.get(number) or request.adapter or None,
            "prompt_tokens": sequence.prompt_tokens,
            "queued_at": at(sequence.queued),
            "admitted_at": at(sequence.admitted),
            "first_token_at": at(sequence.first_token),
            "finished_at": at(sequence.finished),
            "finish": sequence.finish,
        }
    return shown
