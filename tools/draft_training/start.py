"""Where heads start: linear maps fitted in closed form, which spare the first part of the training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draft_training.corpus import Corpus

SAMPLE_TOKENS = 24_000
RIDGE = 1e-3  # of the mean square of the inputs


def best_linear_map(corpus: Corpus, embedding: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Weight [hidden, 2 hidden] and bias: from a token's embedding and the hidden state before it to the one after."""
    inputs, outputs = [], []
    for tokens, states in _sample(corpus, device):
        inputs.append(torch.cat((F.embedding(tokens[1:], embedding), states[:-1, 0]), dim=-1))
        outputs.append(states[1:, 0])
    return _least_squares(torch.cat(inputs), torch.cat(outputs))


def tap_map(corpus: Corpus, norm: Tensor, device: torch.device) -> Tensor:
    """Weight [hidden, taps * hidden]: from the taps to the hidden state of the next token, before the norm's weight."""
    inputs, outputs = [], []
    for _, states in _sample(corpus, device):
        inputs.append(states[:-1, 1:].flatten(1))
        outputs.append(states[1:, 0] / norm)
    return _least_squares(torch.cat(inputs), torch.cat(outputs))[0]


def _sample(corpus: Corpus, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Tokens and states of some sequences."""
    found: list[tuple[Tensor, Tensor]] = []
    total = 0
    for place in range(0, len(corpus), max(1, len(corpus) // 200)):
        batch = corpus.batch([place], device)
        found.append((batch.tokens[0], batch.states[0]))
        total += len(batch.tokens[0])
        if total > SAMPLE_TOKENS:
            break
    return found


def _least_squares(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Ridge regression with a bias."""
    mean, goal = inputs.mean(0), outputs.mean(0)
    x, y = (inputs - mean).double(), (outputs - goal).double()
    gram = x.T @ x
    gram += torch.eye(len(gram), dtype=gram.dtype, device=gram.device) * RIDGE * gram.diagonal().mean()
    weight = torch.linalg.solve(gram, x.T @ y).T.float()
    return weight, goal - weight @ mean
