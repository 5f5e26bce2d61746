"""The sampler: it remembers each slot's request, and draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.sample import logprobs, noise
from penstock.sample.filters import candidates, scale
from penstock.sample.logprobs import Logprobs
from penstock.sample.recipe import Group, Recipe, Slot


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
        positions = torch.tensor(host_positions, device=self._device)
        if recipe.masks is not None:
            recipe.masks.add_bias(logits)
        if recipe.penalties is not None:
            recipe.penalties.apply(logits, self._tokens, positions, max(host_positions))
        if recipe.masks is not None:
            recipe.masks.ban(logits)
        drawn = [
            (group, draw(group.pick(logits), group, positions))
            for group, draw in (
                (recipe.greedy, self._draw_greedy),
                (recipe.plain, self._draw_plain),
                (recipe.filtered, self._draw_filtered),
            )
            if group is not None
        ]
        if len(drawn) == 1:
            return drawn[0][1]
        tokens = torch.empty_like(positions)
        for group, part in drawn:
            tokens[group.rows] = part
        return tokens

    def _draw_greedy(self, logits: Tensor, group: Group, positions: Tensor) -> Tensor:
        return logits.argmax(dim=-1)

    def _draw_plain(self, logits: Tensor, group: Group, positions: Tensor) -> Tensor:
        keys = noise.row_keys(group.streams, group.pick(positions))
        scores = scale(logits, logits.amax(dim=-1, keepdim=True), group.filters.temperature)
        return scores.add_(noise.gumbel(keys, self._hashes)).argmax(dim=-1)

    def _draw_filtered(self, logits: Tensor, group: Group, positions: Tensor) -> Tensor:
        keys = noise.row_keys(group.streams, group.pick(positions))
        tokens = torch.empty_like(keys)
        for part in candidates(logits, group.filters):
            part_keys = keys if part.rows is None else keys[part.rows]
            values = part.scores.add_(noise.gumbel(part_keys, self._hashes[part.tokens]))
            best = values.amax(dim=-1, keepdim=True)
            # of equal values the smallest id, as argmax over the whole vocabulary would have it
            chosen = part.tokens.masked_fill(values != best, self._vocab_size - 1).amin(dim=-1)
            if part.rows is None:
                return chosen
            tokens[part.rows] = chosen
        return tokens
