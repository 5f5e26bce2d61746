"""Log-probabilities of the model's own distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.sample.logprobs import Logprobs


def measure(logits: Tensor, tokens: Tensor, counts: list[int]) -> Logprobs:
    """logits [n, vocab] float32, not changed; tokens [n] int64; and the `counts[i]` most likely of row i."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logits.gather(1, tokens[:, None])
    top_tokens = _largest(logits, min(max(counts), logits.shape[1]))
    return Logprobs(
        tokens=tokens,
        logprobs=logprobs.gather(1, tokens[:, None])[:, 0],
        ranks=(logits > chosen).sum(dim=-1) + 1,
        top_tokens=top_tokens,
        top_logprobs=logprobs.gather(1, top_tokens),
        counts=counts,
    )


def _largest(logits: Tensor, count: int) -> Tensor:
    """[n, count] int64: the tokens of the largest logits, best first. `topk` orders equal values as it likes, so the
    key is the logit in its upper half and the token in its lower half, the smaller id first."""
    if count == 0:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    if not logits.is_cuda:  # where reading back is free, as most rows have no equals among their largest
        top = logits.topk(min(count + 1, logits.shape[1]), dim=-1)
        if (top.values[:, 1:] < top.values[:, :-1]).all():
            return top.indices[:, :count]
    bits = (logits + 0.0).view(torch.int32)  # + 0.0: there is one zero only
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers that compare as the floats do
    last = logits.shape[1] - 1
    keys = (ordered.to(torch.int64) << 32) + torch.arange(last, -1, -1, device=logits.device)
    return last - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)
