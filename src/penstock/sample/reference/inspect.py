"""The distributions of the sampling lab, by the reference's operations on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.kernels import sampling_layout
from penstock.kernels.sampling_layout import PENALTIES
from penstock.sample.inspect import StageInput
from penstock.sample.masks import Floats, TokenMasks, apply_mask
from penstock.sample.reference.adjustments import CPU, add_bias
from penstock.sample.reference.filters import Filters, candidates
from penstock.sample.reference.penalties import Penalties


def distribution(logits: Tensor, tokens: Tensor, masks: TokenMasks | None, stage: StageInput) -> Floats:
    """[vocab] probabilities. `logits` [vocab] are the model's, `tokens` [context] the sequence, `masks` the request's
    biases."""
    params, work = stage.draw_params, logits.clone()[None]
    if params["num_biases"] and masks is not None:
        add_bias(work[0].numpy(), masks)
    if sampling_layout.enabled(PENALTIES, params):
        position = int(params["position"])
        penalties = Penalties.of([0], [{**params, "slot": 0}], CPU)
        penalties.apply(work, tokens[None], torch.tensor([position]), position)
    if stage.allowed is not None:
        apply_mask(work[0].numpy(), stage.allowed)
    probs = torch.zeros_like(logits)
    if params["temperature"] == 0.0:
        probs[work[0].argmax()] = 1.0
    else:
        found = candidates(work, Filters.of([params], CPU), len(logits))
        probs.scatter_(0, found.tokens[0], torch.softmax(found.scores[0], dim=-1))
    return probs.numpy()
