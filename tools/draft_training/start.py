"""Where heads start: linear maps fitted in closed form, which spare the first part of the training."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from draft_training.corpus import Corpus

SAMPLE_TOKENS = 24_000
FIRST = 8  # tokens of a sequence that are left out: their states have extreme values
RIDGE = 1e-2  # of the variance of the inputs


class LinearMap(NamedTuple):
    """Between inputs and outputs that are divided by the scales of their channels."""

    weight: Tensor  # [out, in]
    bias: Tensor  # [out]
    input_scale: Tensor  # [in]
    output_scale: Tensor  # [out]


def feature_map(corpus: Corpus, embedding: Tensor, device: torch.device) -> LinearMap:
    """From a token's embedding and the hidden state before it to the hidden state after it."""
    inputs, outputs = [], []
    for tokens, states in _sample(corpus, device):
        inputs.append(torch.cat((F.embedding(tokens[1:], embedding), states[:-1, 0]), dim=-1))
        outputs.append(states[1:, 0])
    return _least_squares(torch.cat(inputs), torch.cat(outputs))


def tap_map(corpus: Corpus, norm: Tensor, device: torch.device) -> LinearMap:
    """From the taps to the hidden state of the next token, before the norm's weight."""
    inputs, outputs = [], []
    for _, states in _sample(corpus, device):
        inputs.append(states[:-1, 1:].flatten(1))
        outputs.append(states[1:, 0] / norm)
    return _least_squares(torch.cat(inputs), torch.cat(outputs))


def _sample(corpus: Corpus, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Tokens and states of some sequences."""
    found: list[tuple[Tensor, Tensor]] = []
    total = 0
    for place in range(0, len(corpus), max(1, len(corpus) // 200)):
        batch = corpus.batch([place], device)
        found.append((batch.tokens[0, FIRST:], batch.states[0, FIRST:]))
        total += batch.tokens.shape[1]
        if total > SAMPLE_TOKENS:
            break
    return found


def _least_squares(inputs: Tensor, outputs: Tensor) -> LinearMap:
    """Ridge regression with a bias."""
    input_scale, output_scale = (values.square().mean(0).sqrt().clamp_min(1e-3) for values in (inputs, outputs))
    x, y = (inputs / input_scale).double(), (outputs / output_scale).double()
    mean, goal = x.mean(0), y.mean(0)
    x, y = x - mean, y - goal
    gram = x.T @ x
    gram += torch.eye(len(gram), dtype=gram.dtype, device=gram.device) * RIDGE * gram.diagonal().mean()
    weight = torch.linalg.solve(gram, x.T @ y).T
    return LinearMap(weight.float(), (goal - weight @ mean).float(), input_scale, output_scale)
