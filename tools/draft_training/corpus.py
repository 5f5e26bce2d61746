"""Hidden states of the target along its generations, on disk, and the padded batches that training reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from draft_training.generations import Generation

TOKENS_AT_ONCE = 2048  # of the target's forward pass


@dataclass(frozen=True)
class Batch:
    """Windows of sequences, padded on the right."""

    tokens: Tensor  # [sequences, tokens] int64
    states: Tensor  # [sequences, tokens, 1 + taps, hidden] float32: after the final norm, then the taps
    generated: Tensor  # [sequences, tokens] bool: tokens that the target generated
    real: Tensor  # [sequences, tokens] bool: not padding


class Corpus:
    """Generations with their states. Windows are the last `window` tokens of each; states know all tokens before."""

    def __init__(self, generations: Sequence[Generation], states: Tensor, window: int) -> None:
        self._states = states  # [all tokens, 1 + taps, hidden] bfloat16
        self._generations, self._window = generations, window
        lengths = [len(one.tokens) for one in generations]
        self._starts = [sum(lengths[:place]) for place in range(len(lengths))]

    def __len__(self) -> int:
        return len(self._generations)

    @property
    def num_tokens(self) -> int:
        return sum(min(len(one.tokens), self._window) for one in self._generations)

    def counts(self, vocab_size: int) -> Tensor:
        """How often each token was generated, [vocab]."""
        generated = [token for one in self._generations for token in one.tokens[one.prompt_length :]]
        return torch.bincount(torch.tensor(generated), minlength=vocab_size)

    def groups(self, batch_tokens: int, order: random.Random | None = None) -> list[list[int]]:
        """Sequences of each batch: similar lengths together, in random order if there is one."""
        lengths = [min(len(one.tokens), self._window) for one in self._generations]
        keys = [length + (order.random() * 64 if order else 0.0) for length in lengths]
        groups: list[list[int]] = [[]]
        longest = 0
        for place in sorted(range(len(lengths)), key=keys.__getitem__):
            longest = max(longest, lengths[place])
            if groups[-1] and (len(groups[-1]) + 1) * longest > batch_tokens:
                groups.append([])
                longest = lengths[place]
            groups[-1].append(place)
        if order:
            order.shuffle(groups)
        return groups

    def batch(self, group: Sequence[int], device: torch.device) -> Batch:
        longest = max(min(len(self._generations[place].tokens), self._window) for place in group)
        return self._pad(group, longest, device)

    def _pad(self, group: Sequence[int], longest: int, device: torch.device) -> Batch:
        shape = (len(group), longest)
        tokens, generated = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
        states = torch.zeros(*shape, *self._states.shape[1:], dtype=torch.float32)
        real = torch.zeros(shape, dtype=torch.bool)
        for row, place in enumerate(group):
            one = self._generations[place]
            skipped = max(0, len(one.tokens) - self._window)
            length = len(one.tokens) - skipped
            begin = self._starts[place] + skipped
            tokens[row, :length] = torch.tensor(one.tokens[skipped:])
            states[row, :length] = self._states[begin : begin + length].float()
            generated[row, max(0, one.prompt_length - skipped) : length] = True
            real[row, :length] = True
        return Batch(*(tensor.to(device) for tensor in (tokens, states, generated, real)))


class States(Protocol):
    """What computes hidden states."""

    def hidden_states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """For each sequence [tokens, 1 + taps, hidden]: after the final norm, and at the taps."""


def compute_states(
    target: States,
    state_shape: tuple[int, int],
    generations: Sequence[Generation],
    path: Path,
    report: Callable[[str], None],
) -> Tensor:
    """[all tokens, 1 + taps, hidden] bfloat16, mapped from `path`. What an earlier run has computed is kept."""
    lengths = [len(one.tokens) for one in generations]
    shape = (sum(lengths), *state_shape)
    size = shape[0] * shape[1] * shape[2]
    done_path = path.with_suffix(".done")
    done = int(done_path.read_text()) if path.exists() and done_path.exists() else 0
    states = torch.from_file(str(path), shared=True, size=size, dtype=torch.bfloat16).view(shape)
    while done < len(generations):
        count = 1
        while done + count < len(generations) and sum(lengths[done : done + count + 1]) <= TOKENS_AT_ONCE:
            count += 1
        begin = sum(lengths[:done])
        for one in target.hidden_states([one.tokens for one in generations[done : done + count]]):
            states[begin : begin + len(one)] = one.to(torch.bfloat16).cpu()
            begin += len(one)
        done += count
        done_path.write_text(str(done))
        report(f"hidden states: {begin} of {shape[0]} tokens")
    return states
