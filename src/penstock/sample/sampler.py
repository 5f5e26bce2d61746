"""The sampler: it remembers each slot's request, and draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.cpu.draw import draw as draw_native
from penstock.kernels.cpu.program import DrawTable
from penstock.sample import draw, logprobs, noise
from penstock.sample.constraints import Masked
from penstock.sample.inspect import Inspected, inspect
from penstock.sample.logprobs import Logprobs
from penstock.sample.recipe import Asked, Group, Kind, Recipe, Slot


@dataclass(frozen=True, slots=True)
class Draws:
    """The drawn tokens, and the log-probabilities of the rows that asked. On the device."""

    tokens: Tensor  # [rows] int64
    logprobs: Logprobs | None = None
    logprob_rows: list[int] = field(default_factory=list)  # the rows that `logprobs` is about
    masked: Masked | None = None  # the rows that have a constraint
    inspected: dict[int, Inspected] = field(default_factory=dict)  # by row, of those that asked


class _Native(NamedTuple):
    """How the native kernels draw the tokens of some slots. Good until one of these is admitted to, positions apart."""

    slots: list[int]
    table: DrawTable
    untouched: bool  # all of the slots are: the program draws from its own logits, without a look at them here


# Makes the draws in the logits' place, with or without what changes logits first: see `kernels.cuda.sample`.
Replay = Callable[[bool], Tensor]


class Sampler:
    """Keeps what it has worked out for the slots of one step, since the next one mostly samples the same. This one is
    of the CPU; `sample.cuda_sampler` has that of CUDA devices."""

    def __init__(self, vocab_size: int, tokens: Tensor, *, natively: bool = False) -> None:
        """`tokens` [slots, context]: the slot rows, that is, the sequences. Penalties read them, and what is drawn is
        written there. `natively`: the last step, the draw, is made by the native CPU kernels."""
        self._vocab_size = vocab_size
        self._tokens = tokens
        self._device = tokens.device
        self._hashes = noise.token_hashes(vocab_size, tokens.device)
        self._slots: dict[int, Slot] = {}
        self._bare: set[int] = set()  # slots for which the largest logit is the answer
        self._asking: set[int] = set()  # slots that want log-probabilities
        self._asked: tuple[list[int], Asked] | None = None
        self._recipe: tuple[list[int], list[bool], Recipe] | None = None
        self._natively = natively
        self._native: _Native | None = None
        self._watched: dict[int, int] = {}  # slot -> how many tokens to show of its next draw

    def admit(self, admit: Admit) -> None:
        slot = self._slots[admit.slot] = Slot.of(admit, self._vocab_size)
        (self._bare.add if slot.bare else self._bare.discard)(admit.slot)
        (self._asking.discard if slot.params.logprobs is None else self._asking.add)(admit.slot)
        self._recipe = self._native = self._asked = None
        self._watched.pop(admit.slot, None)
        if admit.inspect:
            self._watched[admit.slot] = admit.inspect

    def wants_largest(self, slots: Sequence[int]) -> bool:
        """Whether all of them take the token of the largest logit, whatever it is, and nobody looks."""
        return self._bare.issuperset(slots)

    def sample(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        masked: Masked | None = None,
        replay: Replay | None = None,
    ) -> Draws:
        """Draw the token at `positions[r]` of the sequence in `slots[r]` from `logits[r]`, [rows, vocab] float32, which
        is overwritten. `masked`: the rows among them that have a constraint. `replay`: makes the draws from these very
        logits, as a CUDA graph."""
        inspected = self._inspect(logits, slots, positions, masked) if self._watched else {}
        asked = self._asked_for(slots)
        if asked is None:
            return Draws(self._draw(logits, slots, positions, masked, replay), None, [], masked, inspected)
        untouched = logits.index_select(0, asked.index)
        tokens = self._draw(logits, slots, positions, masked, replay)
        return Draws(
            tokens, logprobs.measure(untouched, tokens[asked.index], asked.counts), asked.rows, masked, inspected
        )

    def native(self, slots: list[int], positions: list[int]) -> DrawTable | None:
        """How the native program draws, penalties included. None: more is to be done to the logits first, or somebody
        wants to see them."""
        native = self._native_for(slots, positions)
        return native.table if native.untouched else None

    def _native_for(self, slots: list[int], positions: Sequence[int]) -> _Native:
        if self._native is None or self._native.slots != slots:
            requests = [self._slots[slot] for slot in slots]
            table = DrawTable([request.native for request in requests])
            self._native = _Native(slots, table, all(request.untouched for request in requests))
        self._native.table.positions[:] = positions
        return self._native

    def _inspect(
        self, logits: Tensor, slots: Sequence[int], positions: Sequence[int], masked: Masked | None
    ) -> dict[int, Inspected]:
        found = {}
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            if slot in self._watched:
                own = None if masked is None else masked.of(row)
                top = self._watched.pop(slot)
                found[row] = inspect(logits[row].clone(), self._slots[slot], position, self._tokens, top, own)
        return found

    def _asked_for(self, slots: Sequence[int]) -> Asked | None:
        if self._asking.isdisjoint(slots):
            return None
        if self._asked is None or self._asked[0] != slots:
            self._asked = (list(slots), Asked.of([self._slots[slot] for slot in slots], self._device))
        return self._asked[1]

    def _recipe_for(self, slots: list[int], positions: Sequence[int]) -> Recipe:
        requests = [self._slots[slot] for slot in slots]
        early = [slot.early(position) for slot, position in zip(requests, positions, strict=True)]
        if self._recipe is None or self._recipe[:2] != (slots, early):
            self._recipe = (slots, early, Recipe.of(requests, early, self._vocab_size, self._device))
        return self._recipe[2]

    def _draw(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        masked: Masked | None,
        replay: Replay | None,
    ) -> Tensor:
        assert replay is None, "there are no graphs on a CPU"
        recipe, at = self._recipe_for(list(slots), positions), torch.tensor(positions)
        if recipe.masks is not None:
            recipe.masks.add_bias(logits)
        if recipe.penalties is not None:
            recipe.penalties.apply(logits, self._tokens, at, max(positions))
        if recipe.masks is not None:
            recipe.masks.ban(logits)
        if masked is not None:
            masked.apply(logits)
        if self._natively:
            tokens = draw_native(logits, self._native_for(list(slots), positions).table)
        else:
            tokens = torch.empty_like(at)
            for kind, group in recipe.groups.items():
                part = self._draw_group(kind, group, group.pick(logits), group.pick(at))
                tokens[slice(None) if group.rows is None else group.rows] = part
        self._tokens[torch.tensor(slots), at] = tokens.to(torch.int32)
        return tokens

    def _draw_group(self, kind: Kind, group: Group, logits: Tensor, positions: Tensor) -> Tensor:
        if kind == "greedy":
            return draw.greedy(logits)
        keys = noise.row_keys(group.streams, positions)
        if kind == "plain":
            return draw.plain(logits, group.filters.temperature, keys, self._hashes)
        return draw.filtered(logits, group.filters, keys, self._hashes)
