"""One sequence on its way through the scheduler.

    WAITING ──admit──► RUNNING ──finish──► FINISHED
       ▲                  │
       └─────preempt──────┘                (a waiting one may finish too: cancelled, timed out)

How far it is, in positions; each step lets `computed` catch up with what is known:

    0 ........... settled ........... computed ........... len(tokens) ........... len(tokens) + pending
      results are      planned, and       known, not yet        sampled by steps in flight:
      back             in flight          computed              they exist, their values do not yet

At look-ahead depth 1 `computed` may exceed len(tokens): the position of a pending token can be planned before the
host has seen it. How many tokens a row with drafts will have added is not known before it is settled, so a sequence
that drafts has one row in flight at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from penstock.cache import BlockTable, PrefixChain
from penstock.flow import Admit, Delta, FinishReason, RowResult, Submit, Timings, TokenLogprobs
from penstock.schedule.tenant_shares import TenantShare

if TYPE_CHECKING:
    from penstock.schedule.speculation import DraftBudget
    from penstock.schedule.step_recorder import WaitState


class State(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """Written by the scheduler's own modules only. `tokens` is the prompt and then the output, as far as known."""

    message: Submit
    rank: tuple[float, ...]  # by policy, then by order of submission: no two are equal
    share: TenantShare  # whose turn it waits for, and who is charged
    limit: int  # tokens it may have in all, prompt included
    chain: PrefixChain
    tokens: list[int] = field(init=False)
    deadline: float | None = field(init=False)  # it ends then
    stops: dict[int, FinishReason] = field(init=False)
    background: bool = field(init=False)  # of a batch: yields to all that are not

    state: State = State.WAITING
    slot: int = -1  # while RUNNING
    table: BlockTable | None = None  # while RUNNING
    settled: int = 0
    computed: int = 0
    pending: int = 0
    in_flight: int = 0  # rows planned and not settled; these and `pending` survive a preemption
    drafting: DraftBudget | None = None  # None: no tokens are drafted
    held: bool = False  # until its constraint has been compiled
    in_line: bool = False  # until its adapter is in memory (see `adapter_line`)
    pinned: bool = False  # its adapter is, for it
    parked: bytes | None = None  # the key of the block it waits for (see `claims`)
    claimed: range = range(0)  # the blocks, by index in its chain, that it has announced to compute

    cached: int | None = None  # prompt tokens found in the cache when it was first admitted
    admitted: float | None = None
    first_token: float | None = None
    preemptions: int = 0
    yields: int = 0  # of those, to a tenant that had been served less
    lost: int = 0  # tokens that it had computed, and paid for, before it was preempted
    aged_from: TenantShare | None = None  # its own tier's share, if it was promoted for its wait
    waiting: WaitState | None = None  # the recorder's, while it waits
    prompt_logprobs: list[TokenLogprobs] | None = field(init=False)  # collected; None: not asked for, or sent

    def __post_init__(self) -> None:
        self.tokens = list(self.message.tokens)
        self.background = self.message.background
        allowed_s = self.message.deadline_s
        self.deadline = None if allowed_s is None else self.message.arrival + allowed_s
        self.stops = dict.fromkeys(self.message.params.stop_tokens, FinishReason.STOP_TOKEN)
        self.stops |= dict.fromkeys(self.message.end_tokens, FinishReason.END)
        self.prompt_logprobs = None if self.message.params.prompt_logprobs is None else []

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def prompt_length(self) -> int:
        return len(self.message.tokens)

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding: it ends with its prompt, and no token is sampled."""
        return self.message.task == "embed"

    @property
    def skips_cache(self) -> bool:
        """Whether every position must be computed: the cache has neither log-probabilities nor hidden states."""
        return self.embeds or self.message.params.prompt_logprobs is not None

    @property
    def uncomputed(self) -> int:
        """Tokens to compute before the next one can be sampled; 0 once the last one has been, settled or not.

        The last token it may have is not computed, since nothing follows from it; an embedding needs that one too.
        """
        if self.drafting is not None and self.pending and self.drafting.waits:
            return 0
        length = len(self.tokens) + self.pending
        return length - self.computed if length < self.limit or self.embeds else 0

    @property
    def most_drafts(self) -> int:
        """How many tokens may be drafted behind the known ones, once there is output: one more is drawn, and end tokens
        are banned for all draws of a row or for none."""
        length, params = len(self.tokens), self.message.params
        if length == self.prompt_length:
            return 0
        output = length - self.prompt_length + self.message.forced
        most = self.limit - length - 1
        return min(most, params.min_tokens - output - 1) if output < params.min_tokens else most

    def admit(self) -> Admit:
        """Its slot on the device, as of now. A copy: the device side owns it."""
        assert self.table is not None
        message = self.message
        return Admit(
            self.slot,
            self.tokens.copy(),
            self.prompt_length - message.forced,
            message.params,
            message.seed,
            message.choice,
            tuple(self.stops),
            [blocks.copy() for blocks in self.table.blocks],
            message.pooling if self.embeds else None,
            message.inspect if len(self.tokens) == self.prompt_length else 0,
            self.chain.root,
            message.adapter,
        )

    def collect_prompt_logprobs(self, start: int, logprobs: list[TokenLogprobs]) -> None:
        """Add the log-probabilities of prompt tokens from start + 1 on. After a preemption some come again."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs += logprobs[len(self.prompt_logprobs) - start :]

    def delta_of(self, outcome: RowResult, count: int) -> Delta:
        """The Delta of the first `count` tokens that a row sampled, with the prompt's logprobs if they come first."""
        delta = Delta(id=self.message.id, tokens=outcome.tokens[:count], cached_tokens=self.cached or 0)
        if self.message.include_drafts:
            delta.drafts = outcome.drafts
        if outcome.logprobs is None and outcome.inspection is None and self.prompt_logprobs is None:
            if delta.drafts is None and count == 1 and len(self.tokens) > self.prompt_length + 1:
                delta.number = self.message.number
            return delta
        delta.inspection = outcome.inspection
        if outcome.logprobs is not None:
            delta.logprobs = outcome.logprobs[:count]
        if self.prompt_logprobs is not None:
            delta.prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, None
        return delta

    def timings(self, now: float) -> Timings:
        drafts = (0, 0) if self.drafting is None else (self.drafting.drafted, self.drafting.accepted)
        return Timings(self.message.arrival, self.admitted, self.first_token, now, self.preemptions, *drafts)
