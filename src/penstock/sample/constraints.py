"""Constrained rows: which tokens a grammar lets follow, computed on the host while the model runs.

A slot's matcher has seen every token of its sequence's output. It is asked for the next mask when the forward pass is
under way, so at look-ahead depth 1 the host first waits for the tokens of the step before: the device has the forward
pass to do meanwhile, and rows without a constraint lose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Admit, FinishReason
from penstock.kernels.upload import upload
from penstock.sample.masks import Bits, pack_bits

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from penstock.grammar.grammar_cache import GrammarCache

# Of CPU time. What the compiler bounds takes a few milliseconds; a grammar made to get around that gets no second one,
# since nobody's token is drawn meanwhile. An honest one takes a tenth of that at most.
SLOWEST_MASK_S = 0.1


@dataclass(slots=True)
class ConstrainedSlot:
    """A sequence under a constraint."""

    matcher: LLMatcher
    prompt_length: int
    min_tokens: int
    never: Bits | None  # tokens that the request rules out by itself
    early: Bits | None  # tokens that end it, ruled out until min_tokens are out

    def mask(self, into: Bits, address: int, position: int) -> FinishReason | None:
        """Write which tokens may stand at `position` to `into`, which lies at `address`; if there are none, how the
        sequence ends, and all may."""
        matcher = self.matcher
        if not matcher.is_stopped():
            began = thread_time()
            matcher.unsafe_compute_mask_ptr(address, len(into))
            if thread_time() - began > SLOWEST_MASK_S:
                into.fill(255)
                return FinishReason.DEAD_END
            if self.never is not None:
                into &= ~self.never
            if self.early is not None and position - self.prompt_length < self.min_tokens:
                later = into & ~self.early
                if later.any():  # else min_tokens yields: there is nothing more to say
                    into[:] = later
            if not matcher.is_error() and into.any():
                return None
        into.fill(255)
        return FinishReason.COMPLETE if matcher.is_accepting() else FinishReason.DEAD_END

    def take(self, token: int) -> FinishReason | None:
        """The token that was drawn. Gives how that ends the sequence, if it does."""
        self.matcher.consume_token(token)
        done = self.matcher.is_stopped() and self.matcher.is_accepting()
        return FinishReason.COMPLETE if done else None


@dataclass(slots=True)
class StepConstraints:
    """The constrained rows of one step."""

    vocab_size: int
    rows: list[int]  # into the logits
    bounds: list[ConstrainedSlot]
    allowed: Bits  # [rows, bytes]
    finishes: dict[int, FinishReason]  # by row of the logits: no token can be drawn, what comes out means nothing
    ended: dict[int, FinishReason] | None = field(default=None)  # the same, and those that end with their token

    def apply(self, logits: Tensor) -> None:
        """Change `logits` [rows, vocab] in place."""
        if logits.is_cuda:
            return self.apply_on_device(logits)
        values = logits.numpy()
        for row, allowed in zip(self.rows, self.allowed, strict=True):
            _keep(values[row], allowed)
        return None

    def apply_on_device(self, logits: Tensor) -> None:
        """The same in operations of torch: bits are what is uploaded. On a CPU this takes a hundred times longer."""
        packed = upload(self.allowed, logits.device)
        bits = packed[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=logits.device)
        banned = (bits & 1).view(len(self.rows), -1)[:, : self.vocab_size] == 0
        rows = upload(self.rows, logits.device)
        logits.index_copy_(0, rows, logits.index_select(0, rows).masked_fill_(banned, -math.inf))

    def of(self, row: int) -> StepConstraints | None:
        """That row alone, as the only one of its logits. None: it is free, or no token can be drawn."""
        if row not in self.rows or row in self.finishes:
            return None
        place = self.rows.index(row)
        return StepConstraints(self.vocab_size, [0], [self.bounds[place]], self.allowed[place : place + 1], {})

    def settle(self, tokens: Sequence[int]) -> dict[int, FinishReason]:
        """Let the matchers see what was drawn, once. Gives the rows whose sequences end by their constraint."""
        if self.ended is None:
            self.ended = dict(self.finishes)
            for row, bound in zip(self.rows, self.bounds, strict=True):
                if row not in self.ended and (finish := bound.take(tokens[row])) is not None:
                    self.ended[row] = finish
        return self.ended


def _keep(values: np.ndarray[Any, Any], allowed: Bits) -> None:
    """All but the allowed ones to -inf. They are either few or nearly all: what there is less of is looked up, which
    takes a third of the time of a masked copy."""
    few = 2 * int(np.bitwise_count(allowed).sum(dtype=np.int64)) <= len(values)
    looked_up = np.unpackbits(allowed if few else ~allowed, count=len(values), bitorder="little")
    tokens = looked_up.view(np.bool_).nonzero()[0]
    if few:
        kept = values[tokens]
        values.fill(-math.inf)
        values[tokens] = kept
    else:
        values[tokens] = -math.inf


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

    def mask(
        self, slots: Sequence[int], positions: Sequence[int], before: Callable[[], None]
    ) -> StepConstraints | None:
        """For the rows that draw the tokens at `positions` of the sequences in `slots`; None if all are free. Calls
        `before`, which lets the matchers see the tokens in front of those positions."""
        rows = [row for row, slot in enumerate(slots) if slot in self._slots] if self._slots else []
        if not rows:
            return None
        before()
        bounds = [self._slots[slots[row]] for row in rows]
        allowed = np.zeros((len(rows), -(-self._vocab_size // 32) * 4), dtype=np.uint8)
        first, size = allowed.ctypes.data, allowed.shape[1]
        finishes = {}
        for place, (row, bound) in enumerate(zip(rows, bounds, strict=True)):
            finish = bound.mask(allowed[place], first + place * size, positions[row])
            if finish is not None:
                finishes[row] = finish
        return StepConstraints(self._vocab_size, rows, bounds, allowed, finishes)

    def _bind(self, grammars: GrammarCache, admit: Admit) -> ConstrainedSlot:
        params = admit.params
        assert params.constraint is not None
        matcher = grammars.matcher(params.constraint)
        if output := admit.tokens[admit.prompt_length :]:  # of a sequence that was preempted
            matcher.consume_tokens(output)
        size = self._vocab_size
        never = pack_bits({*params.banned_tokens, *({*grammars.end_tokens} - {*admit.end_tokens})}, size)
        if params.allowed_tokens:
            never |= ~pack_bits(params.allowed_tokens, size)
        early = pack_bits(admit.end_tokens, size) if params.min_tokens else None
        return ConstrainedSlot(matcher, admit.prompt_length, params.min_tokens, never if never.any() else None, early)
