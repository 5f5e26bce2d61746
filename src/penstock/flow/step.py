"""One engine step: the scheduler's plan and the backend's result.

    schedule: StepPlan ──► forward ──► StepResult ──► schedule.settle()

The backend keeps a permanent row (*slot*) per running sequence: token ids, block tables and sampling parameters. A plan
has only the changes to those rows, and which of them compute how many tokens. Input tokens are not in the plan: at
look-ahead depth 1 the host does not know the newest one when it plans.
"""

from __future__ import annotations

import msgspec

from penstock.flow.adapter import Adapter
from penstock.flow.messages import FinishReason, Inspection, Pooling, TokenLogprobs
from penstock.flow.params import SamplingParams


class Admit(msgspec.Struct, array_like=True, frozen=True):
    """A sequence takes a slot, and replaces its content."""

    slot: int
    tokens: list[int]  # all known ones: the prompt, and after a preemption the output so far
    prompt_length: int
    params: SamplingParams
    seed: int
    choice: int
    end_tokens: tuple[int, ...]  # end and stop tokens of the request, which min_tokens bans
    blocks: list[list[int]]  # [cache groups][blocks]: the block table so far, cached prefix first
    pooling: Pooling | None = None  # how its hidden states, from position 0 on, become an embedding; None: it generates
    inspect: int = 0  # as in Submit, of the first token it draws
    scope: bytes = b""  # the root of its prefix keys: of the same tenant, salt and adapter alone
    adapter: Adapter | None = None  # in memory, and pinned there


class Extend(msgspec.Struct, array_like=True, frozen=True):
    """A slot's block table in one cache group grows by `blocks`."""

    slot: int
    group: int
    blocks: list[int]


class Row(msgspec.Struct, array_like=True, frozen=True):
    """One sequence's share of a step: compute positions start .. start + count - 1."""

    slot: int
    start: int
    count: int
    # Tokens that may be drawn: 0, or one from the logits of the last position, and one more for each token that may be
    # drafted behind it, whose positions the backend computes too. Never of embedding sequences.
    draws: int

    @property
    def sample(self) -> bool:
        return self.draws > 0

    @property
    def tokens(self) -> int:
        """How many the step computes at most."""
        return self.count + self.draws - 1 if self.draws else self.count


class StepPlan(msgspec.Struct, array_like=True, frozen=True):
    """Apply `admits`, then `extends`, then compute `rows`: those of one token first, longer chunks after them."""

    number: int  # counts up by one per plan
    admits: list[Admit]
    extends: list[Extend]
    rows: list[Row]


class RowResult(msgspec.Struct, array_like=True):
    """The result of one row. `tokens` is empty if it was not sampled, or a constraint allowed no token; drafted tokens
    that were right precede the last one."""

    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the tokens that follow this chunk's positions in the prompt
    embedding: bytes | None = None  # of a slot that pools, with the last position of its prompt; as in Delta
    finish: FinishReason | None = None  # COMPLETE or DEAD_END: the constraint ends the sequence behind `tokens`
    inspection: Inspection | None = None
    drafts: list[int] = []  # tokens that were drafted; `tokens` has those that were right, and one more

    @property
    def drafted(self) -> int:
        return len(self.drafts)


class StepResult(msgspec.Struct, array_like=True):
    """The result of a step."""

    number: int  # of the plan
    rows: list[RowResult]  # in the plan's order
    audited: int = 0  # tokens that were drawn again without drafts
    mismatches: int = 0  # of those, tokens that were others then: a defect
