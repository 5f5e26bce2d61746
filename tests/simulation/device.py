"""A runner without a model: device memory as lists, attention as a comparison.

What a real device would store as a position's key and value is here its *mark*: a hash of the sequence's tokens up to
and including that position. A step writes the marks of its rows into the pages, then reads through the block tables
everything its queries may see and demands to find its own history there. The next token is a function of the last
mark, that is of the whole history: any block shared wrongly, reused early or missing shows up. An embedding is the list
of all marks that were pooled, so that it tells which positions were, how often, and with what history. Drafts are
tokens at random, many of them right: positions of wrong ones are left with marks that no history has.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field
from random import Random

from penstock.flow import Admit, Pooling, Row, RowResult, SamplingParams, StepPlan, StepResult, Submit, TokenLogprobs

VOCABULARY = 7


def marks_of(tokens: list[int], message: Submit) -> list[int]:
    """[tokens] what each position writes: tenants, salts and adapters see to it that nobody reads another's."""
    marks, mark = [], zlib.crc32(repr((message.tenant, message.salt, message.adapter)).encode())
    for token in tokens:
        mark = hash((mark, token))
        marks.append(mark)
    return marks


def draw(mark: int, seed: int) -> int:
    return zlib.crc32(repr((mark, seed)).encode()) % VOCABULARY


def embed(marks: list[int], pooling: Pooling) -> bytes:
    """Of the marks pooled, in the order they were."""
    return repr((pooling, marks if pooling == "mean" else marks[-1:])).encode()


def logprob_of(token: int, position: int) -> TokenLogprobs:
    return TokenLogprobs(token, -float(position), 1, [])


@dataclass(eq=False)
class Slot:
    tokens: list[int]
    marks: list[int]
    prompt_length: int
    limit: int  # tokens it may have in all
    params: SamplingParams
    seed: int
    blocks: list[list[int]]
    pooling: Pooling | None
    pooled: list[int] = field(default_factory=list)  # marks, since it was admitted


@dataclass
class Launched:
    """A step that was computed but not collected."""

    result: StepResult
    written: dict[tuple[int, int], Slot] = field(default_factory=dict)  # (group, block) -> who
    touched: dict[tuple[int, int], set[Slot]] = field(default_factory=dict)
    slots: set[int] = field(default_factory=set)


class Device:
    def __init__(
        self,
        windows: list[int],
        num_blocks: list[int],
        block_size: int,
        step_tokens: int,
        drafts: Random | None = None,
    ) -> None:
        self.drafts = drafts
        self.windows = windows
        self.block_size = block_size
        self.step_tokens = step_tokens
        self.pages: list[list[list[int | None]]] = [[[None] * block_size for _ in range(n)] for n in num_blocks]
        self.slots: dict[int, Slot] = {}
        self.requests: dict[int, Submit] = {}  # by Admit.choice, which the tests make unique per request
        self.flight: deque[Launched] = deque()
        self.number = 0
        self.computed_tokens = 0

    def launch(self, plan: StepPlan) -> None:
        self.number += 1
        assert plan.number == self.number
        self._apply(plan)
        self._check_shape(plan)
        step = Launched(StepResult(plan.number, []), slots={row.slot for row in plan.rows})
        rows = [self._draft(row) for row in plan.rows]
        for row in rows:
            self._note_touches(step, row)
        for earlier in (*self.flight, step):
            self._check_exclusive(step, earlier)
        for row in rows:
            self._write(row)
        for row in rows:
            self._read(row)
        step.result.rows.extend(self._result(row) for row in rows)
        self.computed_tokens += sum(row.count for row in rows)
        self.flight.append(step)

    def collect(self) -> StepResult:
        return self.flight.popleft().result

    def break_down(self) -> None:
        """All that is in flight is lost, and what it wrote is garbage."""
        for step in self.flight:
            for group, block in step.written:
                self.pages[group][block] = [None] * self.block_size
        self.flight.clear()

    # --- a plan

    def _apply(self, plan: StepPlan) -> None:
        for admit in plan.admits:
            assert all(admit.slot not in step.slots for step in self.flight), "the slot is still in use"
            self.slots[admit.slot] = self._slot(admit)
        for extend in plan.extends:
            assert extend.blocks
            self.slots[extend.slot].blocks[extend.group] += extend.blocks

    def _slot(self, admit: Admit) -> Slot:
        request = self.requests[admit.choice]
        return Slot(
            tokens=list(admit.tokens),
            marks=marks_of(admit.tokens, request),
            prompt_length=admit.prompt_length,
            limit=admit.prompt_length + request.max_output,
            params=admit.params,
            seed=admit.seed,
            blocks=[list(group) for group in admit.blocks],
            pooling=admit.pooling,
        )

    def _check_shape(self, plan: StepPlan) -> None:
        assert plan.rows, "an empty plan is no plan"
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        assert {admit.slot for admit in plan.admits} <= {row.slot for row in plan.rows}
        assert 0 < sum(row.tokens for row in plan.rows) <= self.step_tokens
        singles = [row.count == 1 for row in plan.rows]
        assert singles == sorted(singles, reverse=True), "single-token rows come first"
        for row in plan.rows:
            slot = self.slots[row.slot]
            length = len(slot.tokens)
            assert slot.pooling or length < slot.limit, "a token is computed that nobody can ask for"
            assert row.count >= 1
            assert row.start + row.count <= length
            assert row.sample == (row.start + row.count == length and slot.pooling is None)
            assert length + row.draws <= slot.limit or row.draws <= 1, "a token is drafted that nobody can ask for"

    def _draft(self, row: Row) -> Row:
        """The row with its drafts, which are in the slot now."""
        if row.draws <= 1:
            return row
        assert self.drafts is not None
        slot, count = self.slots[row.slot], self.drafts.randint(0, row.draws - 1)
        for _ in range(count):
            right = self.drafts.random() < 0.8
            token = draw(slot.marks[-1], slot.seed) if right else self.drafts.randrange(VOCABULARY)
            slot.tokens.append(token)
            slot.marks.append(hash((slot.marks[-1], token)))
        return Row(row.slot, row.start, row.count + count, 1 + count)

    # --- memory

    def _place(self, slot: Slot, group: int, position: int) -> tuple[int, int]:
        block = slot.blocks[group][position // self.block_size]
        assert block != 0, f"position {position} is needed in group {group}, but its block is gone"
        return block, position % self.block_size

    def _visible(self, row: Row, group: int) -> range:
        window = self.windows[group]
        begin = max(0, row.start - window + 1) if window else 0
        return range(begin, row.start + row.count)

    def _note_touches(self, step: Launched, row: Row) -> None:
        slot = self.slots[row.slot]
        for group in range(len(self.windows)):
            for position in self._visible(row, group):
                key = (group, self._place(slot, group, position)[0])
                step.touched.setdefault(key, set()).add(slot)
                if position >= row.start:
                    assert step.written.setdefault(key, slot) is slot, "two rows write to one block"

    def _check_exclusive(self, step: Launched, earlier: Launched) -> None:
        """What one sequence writes, no other one reads or writes, neither in this step nor in one in flight."""
        for one, other in ((step, earlier), (earlier, step)):
            for key, owner in one.written.items():
                assert other.touched.get(key, {owner}) == {owner}, f"block {key} is written while another one uses it"

    def _write(self, row: Row) -> None:
        slot = self.slots[row.slot]
        for group, pages in enumerate(self.pages):
            for position in range(row.start, row.start + row.count):
                block, offset = self._place(slot, group, position)
                pages[block][offset] = slot.marks[position]

    def _read(self, row: Row) -> None:
        slot = self.slots[row.slot]
        for group, pages in enumerate(self.pages):
            for position in self._visible(row, group):
                block, offset = self._place(slot, group, position)
                assert pages[block][offset] == slot.marks[position], f"block {block} holds another history"

    # --- results

    def _result(self, row: Row) -> RowResult:
        slot = self.slots[row.slot]
        result = RowResult([])
        if slot.pooling is not None:
            slot.pooled += slot.marks[row.start : row.start + row.count]
            if row.start + row.count == slot.prompt_length:
                result.embedding = embed(slot.pooled, slot.pooling)
        if slot.params.prompt_logprobs is not None:
            following = range(row.start + 1, min(row.start + row.count + 1, slot.prompt_length))
            result.prompt_logprobs = [logprob_of(slot.tokens[position], position) for position in following]
        if row.sample:
            self._draw(slot, row, result)
        return result

    def _draw(self, slot: Slot, row: Row, result: RowResult) -> None:
        known = len(slot.tokens) - (row.draws - 1)
        result.drafts = slot.tokens[known:]
        for position in range(known, known + row.draws):
            token = draw(slot.marks[position - 1], slot.seed)
            result.tokens.append(token)
            if slot.tokens[position : position + 1] != [token]:
                break
        position = known + len(result.tokens) - 1
        slot.tokens[position:], slot.marks[position:] = [token], [hash((slot.marks[position - 1], token))]
        if slot.params.logprobs is not None:
            result.logprobs = [logprob_of(token, known + index) for index, token in enumerate(result.tokens)]
