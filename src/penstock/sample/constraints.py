"""Constrained rows: masks of the tokens that a grammar allows, computed on the host during the forward pass.

A slot's matcher has consumed its sequence's output. It computes the next mask while the forward pass runs, so at
look-ahead depth 1 the host first waits for the tokens of the step before; the device stays busy, and rows without a
constraint lose no time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from penstock.flow import Admit, FinishReason
from penstock.sample.masks import Bits, mask_bytes, pack_bits

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from penstock.grammar.grammar_cache import GrammarCache

# CPU time of one mask. All rows of the step wait for it, so a grammar that exceeds it ends. Grammars within the
# compiler's limits take at most a tenth of it.
SLOWEST_MASK_S = 0.1
NO_DRAFTS: Mapping[int, list[int]] = {}


@dataclass(slots=True)
class ConstrainedSlot:
    """A sequence with a constraint."""

    matcher: LLMatcher
    prompt_length: int
    min_tokens: int
    banned: Bits | None  # tokens that the request itself bans
    ends: Bits | None  # end and stop tokens, banned until min_tokens are out

    def mask(self, into: Bits, address: int, position: int) -> FinishReason | None:
        """Write the tokens allowed at `position` to `into`, whose memory is at `address`. If there are none, gives how
        the sequence ends, and allows all."""
        matcher = self.matcher
        if not matcher.is_stopped():
            began = thread_time()
            matcher.unsafe_compute_mask_ptr(address, len(into))
            if thread_time() - began > SLOWEST_MASK_S:
                into.fill(255)
                return FinishReason.DEAD_END
            if self.banned is not None:
                into &= ~self.banned
            if self.ends is not None and position - self.prompt_length < self.min_tokens:
                without_ends = into & ~self.ends
                if without_ends.any():  # else min_tokens yields: nothing but the end is allowed
                    into[:] = without_ends
            if not matcher.is_error() and into.any():
                return None
        into.fill(255)
        return FinishReason.COMPLETE if matcher.is_accepting() else FinishReason.DEAD_END

    def allowed_length(self, drafts: list[int]) -> int:
        """How many of these tokens the constraint allows to follow."""
        if self.matcher.is_stopped():
            return 0
        if (banned := self.banned) is not None:
            wrong = (place for place, token in enumerate(drafts) if banned[token >> 3] >> (token & 7) & 1)
            drafts = drafts[: next(wrong, len(drafts))]
        return self.matcher.validate_tokens(drafts) if drafts else 0

    def masks(self, into: Bits, address: int, position: int, drafts: list[int]) -> list[FinishReason | None]:
        """As `mask`, of `position` and of those behind each of the `drafts`, to the rows of `into`. The matcher stays
        where it is."""
        finishes = []
        for place in range(len(into)):
            if place:
                self.matcher.consume_token(drafts[place - 1])
            finishes.append(self.mask(into[place], address + place * into.shape[1], position + place))
        if drafts and not self.matcher.rollback(len(drafts)):
            raise AssertionError("a matcher has lost its place")
        return finishes

    def consume(self, token: int) -> FinishReason | None:
        """Consume the drawn token. Gives how it ends the sequence, if it does."""
        self.matcher.consume_token(token)
        done = self.matcher.is_stopped() and self.matcher.is_accepting()
        return FinishReason.COMPLETE if done else None


@dataclass(slots=True)
class StepConstraints:
    """The constrained rows of one step."""

    rows: list[int]  # into the logits; those of a slot's drafts follow its first
    slots: list[ConstrainedSlot]
    allowed: Bits  # [rows, mask_bytes]
    finishes: dict[int, FinishReason]  # by row of the logits: no token is allowed, the drawn one means nothing
    ended: dict[int, FinishReason] | None = field(default=None)  # `finishes` and the rows that end with their token

    def allowed_of(self, row: int) -> Bits | None:
        """The mask of a row of the logits. None: it has no constraint, or no token is allowed."""
        return None if row not in self.rows or row in self.finishes else self.allowed[self.rows.index(row)]

    def settle(self, tokens: Sequence[int], kept: Container[int] | None = None) -> dict[int, FinishReason]:
        """Feed the matchers with the drawn tokens, once. Gives the rows whose sequences end by their constraint.
        `kept`: the rows of the logits that count; None: all."""
        if self.ended is None:
            self.ended = {}
            over: ConstrainedSlot | None = None  # its sequence has ended, with drafts behind
            for row, slot in zip(self.rows, self.slots, strict=True):
                if slot is over or (kept is not None and row not in kept):
                    continue
                finish = self.finishes[row] if row in self.finishes else slot.consume(tokens[row])
                if finish is not None:
                    self.ended[row], over = finish, slot
        return self.ended


class Constraints:
    """The matchers of the slots whose sequences have a constraint."""

    def __init__(self, vocab_size: int, grammars: GrammarCache | None) -> None:
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._slots: dict[int, ConstrainedSlot] = {}

    def admit(self, admit: Admit) -> None:
        self._slots.pop(admit.slot, None)
        if admit.params.constraint is not None and admit.pooling is None:
            assert self._grammars is not None, "this engine was built without grammars"
            self._slots[admit.slot] = self._bind(self._grammars, admit)

    def has(self, slot: int) -> bool:
        return slot in self._slots

    def allowed_length(self, slot: int, drafts: list[int]) -> int:
        """How many of these tokens may follow, by its constraint. The matchers must be up to date."""
        constrained = self._slots.get(slot)
        return len(drafts) if constrained is None else constrained.allowed_length(drafts)

    def mask(
        self,
        slots: Sequence[int],
        positions: Sequence[int],
        before: Callable[[], None],
        drafts: Mapping[int, list[int]] = NO_DRAFTS,
    ) -> StepConstraints | None:
        """Masks for the tokens at `positions` of the sequences in `slots`; None, if none has a constraint. Calls
        `before`, which feeds the matchers with the tokens before those positions. `drafts` by slot: a slot with
        drafts has a row more for each."""
        rows = [row for row, slot in enumerate(slots) if slot in self._slots] if self._slots else []
        if not rows:
            return None
        before()
        constrained = [self._slots[slots[row]] for row in rows]
        allowed = np.zeros((len(rows), mask_bytes(self._vocab_size)), dtype=np.uint8)
        first, size = allowed.ctypes.data, allowed.shape[1]
        finishes: dict[int, FinishReason] = {}
        place = 0
        while place < len(rows):
            row = rows[place]
            own = drafts.get(slots[row], [])
            end = place + 1 + len(own)
            found = constrained[place].masks(allowed[place:end], first + place * size, positions[row], own)
            finishes |= {row + index: finish for index, finish in enumerate(found) if finish is not None}
            place = end
        return StepConstraints(rows, constrained, allowed, finishes)

    def _bind(self, grammars: GrammarCache, admit: Admit) -> ConstrainedSlot:
        params = admit.params
        assert params.constraint is not None
        matcher = grammars.matcher(params.constraint)
        if output := admit.tokens[admit.prompt_length :]:  # of a sequence that was preempted
            matcher.consume_tokens(output)
        size = self._vocab_size
        banned = pack_bits({*params.banned_tokens, *({*grammars.end_tokens} - {*admit.end_tokens})}, size)
        if params.allowed_tokens:
            banned |= ~pack_bits(params.allowed_tokens, size)
        ends = pack_bits(admit.end_tokens, size) if params.min_tokens else None
        return ConstrainedSlot(matcher, admit.prompt_length, params.min_tokens, banned if banned.any() else None, ends)
