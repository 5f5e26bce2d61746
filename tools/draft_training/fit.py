"""The training loop, and the losses of each kind of network. All learn the target's distribution over the draft's
vocabulary (`Teacher`), at the positions the target generated."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draft_training.corpus import Batch, Corpus
from draft_training.eagle import ChainHead
from draft_training.layers import LayerCache
from draft_training.medusa import Medusa
from draft_training.small_model import SmallModel

STEP_WEIGHTS = (1.0, 0.8, 0.64, 0.5)  # of the draft steps: later ones matter only where earlier ones are right
ONE_STEP = 0.6  # share of the updates in which chain heads learn the first draft only, before they learn all
WARM_UP = 0.05  # share of the updates
VECTOR_RATE = 5e-4  # learning rate of norms and biases
REPORT_S = 20.0
# Logits of a batch are computed of the tokens in it and of some others, drawn from the frequent ones and from all: the
# whole vocabulary would take most of the time.
OTHERS_FREQUENT, OTHERS = 1024, 2048
FREQUENT = 4096


class Teacher:
    """What networks learn: the target's output distribution."""

    def __init__(self, embedding: Tensor, head: Tensor, vocabulary: Tensor, counts: Tensor, weight: float) -> None:
        """`embedding` [vocab, hidden]; `head` [draft vocabulary, hidden]; `vocabulary` [draft vocabulary] token ids;
        `counts` [vocab]: how often each was generated; `weight` of the distance between features and hidden states,
        beside the cross entropy."""
        self.embedding, self.head, self.feature_weight = embedding, head, weight
        self._places = torch.full((len(embedding),), -1, device=vocabulary.device)
        self._places[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
        self._frequent = counts[vocabulary.cpu()].argsort(descending=True)[:FREQUENT].to(vocabulary.device)

    def candidates(self, batch: Batch) -> Tensor:
        """Places in the draft's vocabulary whose logits count in this batch."""
        own = self._places[batch.tokens[batch.real]]
        device, count = own.device, len(self.head)
        frequent = self._frequent[torch.randint(len(self._frequent), (OTHERS_FREQUENT,), device=device)]
        others = torch.randint(count, (OTHERS,), device=device)
        return torch.cat((own[own >= 0], frequent, others)).unique()

    def loss(self, logits: Tensor, hidden: Tensor, candidates: Tensor) -> Tensor:
        """Cross entropy of logits [n, candidates] with the target's at hidden states [n, hidden]."""
        wanted = (hidden @ self.head[candidates].T).float().softmax(-1)
        return -(wanted * F.log_softmax(logits.float(), -1)).sum(-1).mean()


def shift(values: Tensor, by: int) -> Tensor:
    """values[:, by:], padded with zeros at the end."""
    rest = values[:, by:]
    padding = torch.zeros_like(values[:, :by])
    return torch.cat((rest, padding), dim=1)


def chain_loss(head: ChainHead, batch: Batch, teacher: Teacher, steps: int) -> Tensor:
    """Of a head that drafts `steps` tokens from every position, each from its own feature and the true token."""
    states, candidates = batch.states[:, :, 0], teacher.candidates(batch)
    feature, cache = head.features(batch.states), LayerCache()
    total = torch.zeros((), device=feature.device)
    for step in range(steps):
        embedded = F.embedding(shift(batch.tokens, step + 1), teacher.embedding)
        feature = head.advance(embedded, feature, step, cache)
        learned = shift(batch.generated, step + 1)
        got, wanted = feature[learned], shift(states, step + 1)[learned]
        loss = teacher.loss(head.logits(got, candidates), wanted, candidates)
        if head.feature_scale is not None:
            distance = F.smooth_l1_loss(got.float() / head.feature_scale, wanted / head.feature_scale)
            loss = loss + teacher.feature_weight * distance
        total = total + STEP_WEIGHTS[step] * loss
    return total / sum(STEP_WEIGHTS[:steps])


def medusa_loss(heads: Medusa, batch: Batch, teacher: Teacher) -> Tensor:
    states, candidates = batch.states[:, :, 0], teacher.candidates(batch)
    total = states.new_zeros(())
    for place, weight in enumerate(STEP_WEIGHTS[: len(heads.heads)]):
        learned = shift(batch.generated, place + 1)
        logits = heads.logits(place, states[learned], candidates)
        total = total + weight * teacher.loss(logits, shift(states, place + 1)[learned], candidates)
    return total / sum(STEP_WEIGHTS[: len(heads.heads)])


def small_model_loss(model: SmallModel, batch: Batch, teacher: Teacher) -> Tensor:
    embedded, candidates = F.embedding(batch.tokens, teacher.embedding), teacher.candidates(batch)
    hidden = model.advance(embedded, 0, [LayerCache() for _ in model.layers])
    logits = model.logits(hidden[batch.generated], candidates)
    return teacher.loss(logits, batch.states[:, :, 0][batch.generated], candidates)


@dataclass(frozen=True)
class Schedule:
    epochs: int
    learning_rate: float
    batch_tokens: int
    seed: int
    dtype: str  # of products; parameters and sums are float32

    @staticmethod
    def share(update: int, updates: int, phases: Sequence[float]) -> float:
        """Of the highest learning rate: in each phase linear warm-up, then a cosine down to zero. `phases`: where they
        end, as shares of the updates."""
        begin = 0
        for end in (round(phase * updates) for phase in phases):
            if update < end:
                break
            begin = end
        place, count = update - begin, max(1, end - begin)
        warm = max(1, int(WARM_UP * count))
        return (place + 1) / warm if place < warm else 0.5 * (1 + math.cos(math.pi * (place - warm) / (count - warm)))


class Optimizers:
    """Muon for matrices, whose updates change all directions of a product alike, and AdamW for norms and biases."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float) -> None:
        matrices = [parameter for parameter in parameters if parameter.ndim == 2]
        vectors = [parameter for parameter in parameters if parameter.ndim != 2]
        self._all: list[torch.optim.Optimizer] = [torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.0)]
        if vectors:
            self._all.append(torch.optim.AdamW(vectors, lr=VECTOR_RATE, betas=(0.9, 0.95)))
        self._rates = [optimizer.param_groups[0]["lr"] for optimizer in self._all]

    def step(self, loss: Tensor, share: float) -> None:
        for optimizer, rate in zip(self._all, self._rates, strict=True):
            optimizer.param_groups[0]["lr"] = share * rate
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in self._all:
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
            optimizer.step()

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._all]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)


def fit(
    name: str,
    network: nn.Module,
    loss: Callable[[Batch, float], Tensor],
    corpus: Corpus,
    schedule: Schedule,
    checkpoint: Path,
    report: Callable[[str], None],
    phases: Sequence[float] = (1.0,),
) -> None:
    """Trains `network` in place. `loss` is given a batch and the share of the updates that is done. Continues after the
    last whole epoch that `checkpoint` has."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    device = parameters[0].device
    optimizers = Optimizers(parameters, schedule.learning_rate)
    orders = [
        corpus.groups(schedule.batch_tokens, random.Random(f"{schedule.seed} {epoch}"))
        for epoch in range(schedule.epochs)
    ]
    updates, first = sum(map(len, orders)), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizers.restore(saved["optimizers"])
        first = saved["epochs"]
    began = reported = time.monotonic()
    seen, mean = 0, math.nan
    for epoch in range(first, schedule.epochs):
        for update, group in enumerate(orders[epoch], sum(map(len, orders[:epoch]))):
            batch = corpus.batch(group, device)
            with torch.autocast(device.type, torch.bfloat16, enabled=schedule.dtype == "bfloat16"):
                value = loss(batch, update / updates)
            optimizers.step(value, schedule.share(update, updates, phases))
            seen += int(batch.real.sum())
            mean = float(value.detach()) if math.isnan(mean) else 0.98 * mean + 0.02 * float(value.detach())
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                speed = seen / (reported - began)
                report(f"train {name}: update {update + 1} of {updates}, loss {mean:.3f}, {speed:.0f} tokens/s")
        saved = {"network": network.state_dict(), "optimizers": optimizers.state(), "epochs": epoch + 1}
        torch.save(saved, checkpoint)
        report(f"train {name}: epoch {epoch + 1} of {schedule.epochs}, loss {mean:.3f}")
