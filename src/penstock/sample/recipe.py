"""What the rows of a step need, grouped so that every operation touches only the rows that asked for it.

A recipe stays good for as long as the same slots are sampled in the same order; in steady decoding it is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from penstock.flow import Admit, SamplingParams
from penstock.kernels.cpu.program import LARGEST, SAMPLED
from penstock.kernels.upload import upload
from penstock.sample import filters, masks, noise, penalties
from penstock.sample.filters import Filters
from penstock.sample.masks import StepMasks, TokenMasks
from penstock.sample.penalties import Penalties

Kind = Literal["greedy", "plain", "filtered", "typical"]  # plain: temperature alone; typical: filtered by typical_p too


def _kind(params: SamplingParams, vocab_size: int) -> Kind:
    if params.greedy:
        return "greedy"
    if params.typical_p < 1.0:
        return "typical"
    return "filtered" if filters.wanted(params, vocab_size) else "plain"


@dataclass(frozen=True, slots=True)
class Slot:
    """What the host remembers of the request in a slot."""

    number: int
    params: SamplingParams
    prompt_length: int
    kind: Kind
    stream: int  # of noise
    masks: TokenMasks | None
    native: tuple[float, ...]  # the fields of `kernels.cpu.program.DRAW`, position yet to come
    untouched: bool  # nothing but penalties and filters is done to its logits, and nobody looks at them

    @classmethod
    def of(cls, admit: Admit, vocab_size: int) -> Slot:
        params = admit.params
        stream = noise.stream(admit.seed, admit.choice)
        token_masks = TokenMasks.of(admit, vocab_size)
        seen = params.constraint is not None or admit.inspect or params.logprobs is not None
        return cls(
            number=admit.slot,
            params=params,
            prompt_length=admit.prompt_length,
            kind=_kind(params, vocab_size),
            stream=stream,
            masks=token_masks,
            native=(
                LARGEST if params.greedy else SAMPLED,
                admit.slot,
                0,
                *filters.Numbers.of(params, vocab_size),
                admit.prompt_length,
                *penalties.numbers(params),
                stream,
            ),
            untouched=not seen and token_masks is None,
        )

    @property
    def bare(self) -> bool:
        """The token of its largest logit is what it wants, and nothing else."""
        return self.untouched and self.kind == "greedy" and not penalties.wanted(self.params)

    @property
    def bans(self) -> bool:
        """Some tokens are not to be drawn, now or at first, whatever came before. A constraint knows of those, too."""
        return self.masks is not None and self.masks.bans and self.params.constraint is None

    def early(self, position: int) -> bool:
        """Is the token of `position` one of the first `min_tokens`?"""
        return position - self.prompt_length < self.params.min_tokens


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are drawn alike."""

    rows: Tensor | None  # [n] int64; None: all rows of the step
    streams: Tensor  # [n] int64
    filters: Filters

    @classmethod
    def of(cls, rows: list[int], slots: Sequence[Slot], vocab_size: int, device: torch.device) -> Group:
        return cls(
            rows=upload(rows, device) if len(rows) < len(slots) else None,
            streams=upload([slots[row].stream for row in rows], device),
            filters=Filters.of([slots[row].params for row in rows], vocab_size, device),
        )

    def pick(self, values: Tensor) -> Tensor:
        """The group's part of a tensor with one entry per row of the step."""
        return values if self.rows is None else values.index_select(0, self.rows)


@dataclass(frozen=True, slots=True)
class Asked:
    """The rows that want log-probabilities of what was drawn."""

    rows: list[int]
    index: Tensor  # the same rows, [n] int64
    counts: list[int]  # [n]: how many of the likeliest tokens too

    @classmethod
    def of(cls, slots: Sequence[Slot], device: torch.device) -> Asked:
        """At least one of them does."""
        counts = {row: slot.params.logprobs for row, slot in enumerate(slots) if slot.params.logprobs is not None}
        return cls(list(counts), upload(list(counts), device), list(counts.values()))


@dataclass(frozen=True, slots=True)
class Recipe:
    masks: StepMasks | None
    penalties: Penalties | None
    groups: dict[Kind, Group]  # none of them empty

    @classmethod
    def of(cls, slots: Sequence[Slot], early: Sequence[bool], vocab_size: int, device: torch.device) -> Recipe:
        masked = [(row, slot.masks, early[row]) for row, slot in enumerate(slots) if slot.masks is not None]
        penalised = [
            (row, slot.number, slot.prompt_length, slot.params)
            for row, slot in enumerate(slots)
            if penalties.wanted(slot.params)
        ]
        kinds: dict[Kind, list[int]] = {}
        for row, slot in enumerate(slots):
            kinds.setdefault(slot.kind, []).append(row)
        return cls(
            masks=masks.combine(masked, vocab_size, device) if masked else None,
            penalties=Penalties.of(penalised, device) if penalised else None,
            groups={kind: Group.of(rows, slots, vocab_size, device) for kind, rows in kinds.items()},
        )
