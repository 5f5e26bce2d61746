"""The training loop, and the losses of each kind of network. All learn the target's distribution over the draft's
vocabulary (`Teacher`), at the positions the target generated."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draft_training.corpus import Batch, Corpus
from draft_training.eagle import ChainHead
from draft_training.layers import LayerCache
from draft_training.medusa import Medusa
from draft_training.small_model import SmallModel

STEP_WEIGHTS = (1.0, 0.8, 0.64, 0.5)  # of the draft steps: later ones matter only where earlier ones are right
WARM_UP = 0.05  # share of the updates
REPORT_S = 20.0


@dataclass(frozen=True)
class Teacher:
    """What networks learn: the target's output distribution."""

    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [draft vocabulary, hidden]
    feature_weight: float  # of the distance between features and hidden states, beside the cross entropy

    def loss(self, logits: Tensor, hidden: Tensor) -> Tensor:
        """Cross entropy of logits [n, draft vocabulary] with the target's at hidden states [n, hidden]."""
        wanted = (hidden @ self.head.T).float().softmax(-1)
        return -(wanted * F.log_softmax(logits.float(), -1)).sum(-1).mean()


def shift(values: Tensor, by: int) -> Tensor:
    """values[:, by:], padded with zeros at the end."""
    rest = values[:, by:]
    padding = torch.zeros_like(values[:, :by])
    return torch.cat((rest, padding), dim=1)


def chain_loss(head: ChainHead, batch: Batch, teacher: Teacher, steps: int) -> Tensor:
    """Of a head that drafts `steps` tokens from every position, each from its own feature and the true token."""
    states = batch.states[:, :, 0]
    feature, cache = head.features(batch.states), LayerCache()
    total = torch.zeros((), device=feature.device)
    for step in range(steps):
        embedded = F.embedding(shift(batch.tokens, step + 1), teacher.embedding)
        feature = head.advance(embedded, feature, step, cache)
        learned = shift(batch.generated, step + 1)
        got, wanted = feature[learned], shift(states, step + 1)[learned]
        loss = teacher.loss(head.logits(got), wanted)
        if teacher.feature_weight and not getattr(head, "taps_used", False):
            loss = loss + teacher.feature_weight * F.smooth_l1_loss(
                got / head.fc.output_scale, wanted / head.fc.output_scale
            )
        total = total + STEP_WEIGHTS[step] * loss
    return total / sum(STEP_WEIGHTS[:steps])


def medusa_loss(heads: Medusa, batch: Batch, teacher: Teacher) -> Tensor:
    states = batch.states[:, :, 0]
    total = states.new_zeros(())
    for place, head in enumerate(heads.heads):
        learned = shift(batch.generated, place + 1)
        total = total + STEP_WEIGHTS[place] * teacher.loss(head(states[learned]), shift(states, place + 1)[learned])
    return total / sum(STEP_WEIGHTS[: len(heads.heads)])


def small_model_loss(model: SmallModel, batch: Batch, teacher: Teacher) -> Tensor:
    embedded = F.embedding(batch.tokens, teacher.embedding)
    hidden = model.advance(embedded, 0, [LayerCache() for _ in model.layers])
    return teacher.loss(model.logits(hidden[batch.generated]), batch.states[:, :, 0][batch.generated])


@dataclass(frozen=True)
class Schedule:
    epochs: int
    learning_rate: float
    batch_tokens: int
    seed: int
    dtype: str  # of products; parameters and sums are float32

    def rate(self, update: int, updates: int) -> float:
        """Linear warm-up, then a cosine down to zero."""
        warm = max(1, int(WARM_UP * updates))
        if update < warm:
            return self.learning_rate * (update + 1) / warm
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (update - warm) / max(1, updates - warm)))


def fit(
    name: str,
    network: nn.Module,
    loss: Callable[[Batch], Tensor],
    corpus: Corpus,
    schedule: Schedule,
    checkpoint: Path,
    report: Callable[[str], None],
) -> None:
    """Trains `network` in place. Continues after the last whole epoch that `checkpoint` has."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    device = parameters[0].device
    optimizer = torch.optim.AdamW(parameters, lr=schedule.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    orders = [
        corpus.groups(schedule.batch_tokens, random.Random(f"{schedule.seed} {epoch}"))
        for epoch in range(schedule.epochs)
    ]
    updates, first = sum(map(len, orders)), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]
    began = reported = time.monotonic()
    seen, mean = 0, math.nan
    for epoch in range(first, schedule.epochs):
        for update, group in enumerate(orders[epoch], sum(map(len, orders[:epoch]))):
            batch = corpus.batch(group, device)
            for options in optimizer.param_groups:
                options["lr"] = schedule.rate(update, updates)
            with torch.autocast(device.type, torch.bfloat16, enabled=schedule.dtype == "bfloat16"):
                value = loss(batch)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            seen += int(batch.real.sum())
            mean = float(value.detach()) if math.isnan(mean) else 0.98 * mean + 0.02 * float(value.detach())
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                speed = seen / (reported - began)
                report(f"train {name}: update {update + 1} of {updates}, loss {mean:.3f}, {speed:.0f} tokens/s")
        saved = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
        torch.save(saved, checkpoint)
        report(f"train {name}: epoch {epoch + 1} of {schedule.epochs}, loss {mean:.3f}")
