"""Trains, measures and saves one network of each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draft_training import acceptance, fit, save
from draft_training.corpus import Batch
from draft_training.data import Data
from draft_training.eagle import ChainHead, Eagle1, Eagle3
from draft_training.medusa import Medusa
from draft_training.options import Options
from draft_training.small_model import SmallModel
from draft_training.start import feature_map, tap_map
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec, Rope

# Options that determine a network; others only say what is measured, or where.
DETERMINING = (
    *("texts", "target", "invented", "samples", "max_tokens", "max_prompt", "seed"),
    *("window", "draft_vocabulary", "epochs", "steps", "depth", "layers", "learning_rate", "batch_tokens"),
    *("feature_weight", "dtype"),
)


def llama_spec(target: ModelSpec, layers: int) -> ModelSpec:
    """Of Llama layers with the target's sizes, whatever its own layers are."""
    return ModelSpec(
        architecture="llama",
        name=target.name,
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_layers=layers,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        context=target.context,
        norm_eps=target.norm_eps,
        rope=Rope(theta=target.rope.theta, dim=target.head_dim),
        tied=target.tied,
        attention_scale=target.head_dim**-0.5,
        end_tokens=target.end_tokens,
    )


class Trainer:
    def __init__(self, options: Options, data: Data, report: Callable[[str], None]) -> None:
        self._options, self._data, self._report = options, data, report
        self._device = torch.device(options.device)
        self._head_spec = llama_spec(data.target.spec, 1)
        self._model_spec = llama_spec(data.target.spec, options.layers)

    def train(self, kind: str, folder: Path) -> None:
        torch.manual_seed(self._options.seed)
        getattr(self, f"_{kind}")(folder)
        self._report(f"saved {folder}")

    def _eagle(self, folder: Path) -> None:
        options, data = self._options, self._data
        head = Eagle1(self._head_spec, data.teacher.head).to(self._device)
        head.start_from(feature_map(data.training, data.teacher.embedding, self._device))
        self._fit("eagle", head, self._chain_loss(head), (fit.ONE_STEP, 1.0))
        drafts = acceptance.chain_drafts(head, data.teacher.embedding, data.vocabulary, options.depth)
        save.save_eagle1(folder, head, self._head_spec, data.vocabulary, self._measure("eagle", head, drafts))

    def _eagle3(self, folder: Path) -> None:
        options, data = self._options, self._data
        head = Eagle3(self._head_spec, data.teacher.head, data.target.norm).to(self._device)
        head.start_from(tap_map(data.training, data.target.norm, self._device))
        self._fit("eagle3", head, self._chain_loss(head), (fit.ONE_STEP, 1.0))
        drafts = acceptance.chain_drafts(head, data.teacher.embedding, data.vocabulary, options.depth)
        facts = self._measure("eagle3", head, drafts)
        save.save_eagle3(folder, head, self._head_spec, data.vocabulary, list(data.target.taps), facts)

    def _medusa(self, folder: Path) -> None:
        options, data = self._options, self._data
        spec = data.target.spec
        heads = Medusa(spec.hidden_size, data.teacher.head, heads=options.depth, blocks=1).to(self._device)
        heads.start_from(feature_map(data.training, data.teacher.embedding, self._device).output_scale)
        self._fit("medusa", heads, lambda batch, _: fit.medusa_loss(heads, batch, data.teacher))
        drafts = acceptance.medusa_drafts(heads, data.vocabulary, options.depth)
        save.save_medusa(folder, heads, spec, data.vocabulary, self._measure("medusa", heads, drafts))

    def _model(self, folder: Path) -> None:
        options, data = self._options, self._data
        model = SmallModel(self._model_spec, data.teacher.head, data.target.norm).to(self._device)
        last = data.target.spec.num_layers - 1
        chosen = [round(place * last / max(1, options.layers - 1)) for place in range(options.layers)]
        model.start_from([data.target.layer_tensors(number) for number in chosen])
        self._fit("model", model, lambda batch, _: fit.small_model_loss(model, batch, data.teacher))
        drafts = acceptance.small_model_drafts(model, data.teacher.embedding, data.vocabulary, options.depth)
        facts, target = self._measure("model", model, drafts), data.target
        tokenizer = resolve(options.target).tokenizer
        save.save_small_model(folder, model, self._model_spec, target.embedding, target.head, tokenizer, facts)

    def _chain_loss(self, head: ChainHead) -> Callable[[Batch, float], Tensor]:
        def loss(batch: Batch, done: float) -> Tensor:
            steps = 1 if done < fit.ONE_STEP else self._options.steps
            return fit.chain_loss(head, batch, self._data.teacher, steps)

        return loss

    def _fit(
        self,
        kind: str,
        network: nn.Module,
        loss: Callable[[Batch, float], Tensor],
        phases: tuple[float, ...] = (1.0,),
    ) -> None:
        options = self._options
        parameters = sum(parameter.numel() for parameter in network.parameters())
        self._report(f"train {kind}: {parameters / 1e6:.1f}M parameters")
        schedule = fit.Schedule(
            options.epochs, options.learning_rate, options.batch_tokens, options.seed, options.dtype
        )
        checkpoint = options.work / f"{kind}-{options.key(*DETERMINING)}.pt"
        fit.fit(kind, network, loss, self._data.training, schedule, checkpoint, self._report, phases)

    def _measure(self, kind: str, network: nn.Module, drafts: acceptance.Drafts) -> dict[str, Any]:
        """What it was trained on, and its acceptance."""
        network.eval()
        held_out, options = self._data.held_out, self._options
        batches = (held_out.batch(group, self._device) for group in held_out.groups(options.batch_tokens))
        found = acceptance.measure(drafts, batches, options.depth)
        for name, one in found.items():
            joint, conditional = (" ".join(f"{share:.3f}" for share in two) for two in (one.joint, one.conditional))
            self._report(f"{kind}, {name}, {one.steps} steps: joint {joint}; conditional {conditional}")
        names = ("epochs", "steps", "learning_rate", "batch_tokens", "window", "invented", "samples", "max_tokens")
        return {
            "target": options.target,
            "texts": [path.name for path in options.texts],
            "training_tokens": self._data.training.num_tokens,
            "options": {name: getattr(options, name) for name in (*names, "seed")},
            "acceptance": {name: one.facts() for name, one in found.items()},
        }
