"""A step before there is a cache, to learn what a step needs.

What it took stays with torch's allocator, and so counts as in use when the cache is given the rest; kernels are
compiled and libraries set up on the way.
"""

from __future__ import annotations

import torch

from penstock.errors import OutOfMemory
from penstock.forward.memory import CacheSize, allocate_pages
from penstock.forward.runner import Model, ModelRunner
from penstock.kernels.interface import Operations


def rehearse(model: Model, ops: Operations, block_size: int, *, context: int, tokens: int, dtype: torch.dtype) -> None:
    """A prompt of as many `tokens` as a step may have, over pages that are no more than the block that is nobody's."""
    groups = len(model.spec.cache_groups)
    pages = allocate_pages(model.spec, CacheSize(block_size, (1,) * groups, (0,) * groups), dtype, torch.device("cuda"))
    try:
        ModelRunner(model, ops, pages, context=context, max_sequences=1).warm_up(min(tokens, context - 1))
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"there is no memory for a step of {tokens} tokens beside the weights: {error}. Lower step_tokens, or "
            "choose a smaller model or dtype",
            param="step_tokens",
        ) from None
