"""The sampler: it remembers each slot's request, and draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.upload import upload
from penstock.sample import draw, logprobs, noise
from penstock.sample.logprobs import Logprobs
from penstock.sample.recipe import Group, Kind, Recipe, Slot


@dataclass(frozen=True, slots=True)
class Draws:
    """The drawn tokens, and the log-probabilities of the rows that asked. On the device."""

    tokens: Tensor  # [rows] int64
    logprobs: Logprobs | None
    logprob_rows: list[int]  # the rows that `logprobs` is about


class Sampler:
    def __init__(self, vocab_size: int, tokens: Tensor) -> None:
        """`tokens` [slots, context]: the slot rows. They belong to the runner, which writes every token it draws; the
        penalties read them here."""
        self._vocab_size = vocab_size
        self._tokens = tokens
        self._device = tokens.device
        self._hashes = noise.token_hashes(vocab_size, tokens.device)
        self._slots: dict[int, Slot] = {}
        self._recipe: tuple[list[int], list[bool], Recipe] | None = None

    def admit(self, admit: Admit) -> None:
        self._slots[admit.slot] = Slot.of(admit, self._vocab_size, self._device)
        self._recipe = None

    def sample(self, logits: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Draws:
        """Draw the token at `positions[r]` of the sequence in `slots[r]` from `logits[r]`, [rows, vocab] float32, which
        is overwritten."""
        recipe = self._recipe_for(list(slots), positions)
        asked = recipe.asked
        if asked is None:
            return Draws(self._draw(logits, recipe, positions), None, [])
        untouched = logits.index_select(0, asked.index)
        tokens = self._draw(logits, recipe, positions)
        return Draws(tokens, logprobs.measure(untouched, tokens[asked.index], asked.counts), asked.rows)

    def _recipe_for(self, slots: list[int], positions: Sequence[int]) -> Recipe:
        requests = [self._slots[slot] for slot in slots]
        early = [slot.early(position) for slot, position in zip(requests, positions, strict=True)]
        if self._recipe is None or self._recipe[:2] != (slots, early):
            self._recipe = (slots, early, Recipe.of(requests, early, self._vocab_size, self._device))
        return self._recipe[2]

    def _draw(self, logits: Tensor, recipe: Recipe, host_positions: Sequence[int]) -> Tensor:
        positions = upload(host_positions, self._device)
        if recipe.masks is not None:
            recipe.masks.add_bias(logits)
        if recipe.penalties is not None:
            recipe.penalties.apply(logits, self._tokens, positions, max(host_positions))
        if recipe.masks is not None:
            recipe.masks.ban(logits)
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
