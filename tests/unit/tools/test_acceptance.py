"""How acceptance is counted."""

from __future__ import annotations

import torch

from draft_training.acceptance import Acceptance, measure
from draft_training.corpus import Batch

PROMPT, LENGTH, DEPTH = 3, 12, 3


def batch() -> Batch:
    """Tokens 0 .. 11, of which 3 and later were generated, and two of padding."""
    tokens = torch.arange(LENGTH + 2)[None]
    real = tokens < LENGTH
    return Batch(tokens, torch.zeros(1, LENGTH + 2, 1, 4), (tokens >= PROMPT) & real, real)


def test_steps_as_served_follow_what_was_accepted() -> None:
    """From start n the drafts are n + 2, n + 3, n + 4: all right at 2, the first at 6, none elsewhere."""

    def drafts(given: Batch) -> torch.Tensor:
        found = torch.full((1, LENGTH + 2, DEPTH), -1)
        found[0, 2] = torch.tensor([4, 5, 6])
        found[0, 6] = torch.tensor([8, 0, 10])
        return found

    served, everywhere = measure(drafts, [batch()], DEPTH).values()
    # starts 2 (3 accepted), 6 (1 accepted); the drafts of start 8 would go beyond the end
    assert (served.steps, served.right) == (2, [2, 1, 1])
    assert (everywhere.steps, everywhere.right) == (6, [2, 1, 1])  # starts 2 to 7
    assert served.joint == [1.0, 0.5, 0.5]
    assert served.conditional == [1.0, 0.5, 1.0]
    assert served.tokens_per_step == 3.0


def test_nothing_measured() -> None:
    assert Acceptance(2).joint == [0.0, 0.0]
    assert Acceptance(2).conditional == [0.0, 0.0]
