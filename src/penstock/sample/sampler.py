"""The sampler: it remembers each slot's request, and draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.cpu.draw import draw as draw_native
from penstock.kernels.cpu.program import DrawTable
from penstock.kernels.upload import upload
from penstock.sample import draw, logprobs, noise
from penstock.sample.constraints import Masked
from penstock.sample.inspect import Inspected, inspect
from penstock.sample.logprobs import Logprobs
from penstock.sample.recipe import Group, Kind, Recipe, Slot


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


class Sampler:
    """Keeps what it has worked out for the slots of one step, since the next one mostly samples the same."""

    def __init__(self, vocab_size: int, tokens: Tensor, *, natively: bool = False) -> None:
        """`tokens` [slots, context]: the slot rows. They belong to the runner, which writes every token it draws; the
        penalties read them here. `natively`: the last step, the draw, is made by the native CPU kernels."""
        self._vocab_size = vocab_size
        self._tokens = tokens
        self._device = tokens.device
        self._hashes = noise.token_hashes(vocab_size, tokens.device)
        self._slots: dict[int, Slot] = {}
        self._bare: set[int] = set()  # slots for which the largest logit is the answer
        self._recipe: tuple[list[int], list[bool], Recipe] | None = None
        self._natively = natively
        self._native: _Native | None = None
        self._watched: dict[int, int] = {}  # slot -> how many tokens to show of its next draw

    def admit(self, admit: Admit) -> None:
        slot = self._slots[admit.slot] = Slot.of(admit, self._vocab_size, self._device)
        (self._bare.add if slot.bare else self._bare.discard)(admit.slot)
        self._recipe = self._native = None
        self._watched.pop(admit.slot, None)
        if admit.inspect:
            self._watched[admit.slot] = admit.inspect

    def wants_largest(self, slots: Sequence[int]) -> bool:
        """Whether all of them take the token of the largest logit, whatever it is, and nobody looks."""
        return self._bare.issuperset(slots)

    def sample(
        self, logits: Tensor, slots: Sequence[int], positions: Sequence[int], masked: Masked | None = None
    ) -> Draws:
        """Draw the token at `positions[r]` of the sequence in `slots[r]` from `logits[r]`, [rows, vocab] float32, which
        is overwritten. `masked`: the rows among them that have a constraint."""
        inspected = self._inspect(logits, slots, positions, masked) if self._watched else {}
        recipe = self._recipe_for(list(slots), positions)
        asked = recipe.asked
        if asked is None:
            return Draws(self._draw(logits, recipe, slots, positions, masked), None, [], masked, inspected)
        untouched = logits.index_select(0, asked.index)
        tokens = self._draw(logits, recipe, slots, positions, masked)
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

    def _recipe_for(self, slots: list[int], positions: Sequence[int]) -> Recipe:
        requests = [self._slots[slot] for slot in slots]
        early = [slot.early(position) for slot, position in zip(requests, positions, strict=True)]
        if self._recipe is None or self._recipe[:2] != (slots, early):
            self._recipe = (slots, early, Recipe.of(requests, early, self._vocab_size, self._device))
        return self._recipe[2]

    def _draw(
        self,
        logits: Tensor,
        recipe: Recipe,
        slots: Sequence[int],
        host_positions: Sequence[int],
        masked: Masked | None,
    ) -> Tensor:
        positions = upload(host_positions, self._device)
        if recipe.masks is not None:
            recipe.masks.add_bias(logits)
        if recipe.penalties is not None:
            recipe.penalties.apply(logits, self._tokens, positions, max(host_positions))
        if recipe.masks is not None:
            recipe.masks.ban(logits)
        if masked is not None:
            masked.apply(logits)
        if self._natively:
            return draw_native(logits, self._native_for(list(slots), host_positions).table)
        parts = [
            (group, self._draw_group(kind, group, group.pick(logits), group.pick(positions)))
            for kind, group in recipe.groups.items()
        ]
        if len(parts) == 1:
            return parts[0][1]
        tokens = torch.empty_like(positions)
        for group, part in parts:
            tokens[group.rows] = part
        return tokens

    def _draw_group(self, kind: Kind, group: Group, logits: Tensor, positions: Tensor) -> Tensor:
        if kind == "greedy":
            return draw.greedy(logits)
        keys = noise.row_keys(group.streams, positions)
        if kind == "plain":
            return draw.plain(logits, group.filters.temperature, keys, self._hashes)
        return draw.filtered(logits, group.filters, keys, self._hashes)
