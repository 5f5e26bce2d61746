"""Steps in torch operations on the CPU. `launch` runs the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.flow import Row, StepPlan, StepResult
from penstock.forward.backend import BackendConfig, BuiltBackend, EndPhase, Model
from penstock.forward.inputs import gather
from penstock.forward.launched_step import LaunchedStep
from penstock.forward.loading import choose_cache_size
from penstock.forward.slot_tensors import SlotTensors
from penstock.forward.step_outputs import StepOutputs
from penstock.forward.torch_hidden_states import TorchHiddenStates
from penstock.forward.torch_loading import allocate_pages, device_memory, load_model
from penstock.kernels.interface import Operations, Pages
from penstock.kernels.torch_ops import TorchOperations
from penstock.model.load_dense import TORCH_DTYPES
from penstock.sample.reference.draws import Draws
from penstock.sample.torch_sampler import TorchSampler
from penstock.startup import process_tuning, torch_process

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache


def build(config: BackendConfig, grammars: GrammarCache | None, end_phase: EndPhase) -> BuiltBackend:
    torch_process.check_torch_threads(config.settings.engine.threads)
    torch_process.set_torch_threads(config.threads)
    process_tuning.freeze_startup_objects()
    device = torch.device("cpu")
    model = load_model(config, device)
    end_phase("weights")
    size = choose_cache_size(config, device_memory(device))
    pages = allocate_pages(config.spec, size, TORCH_DTYPES[config.kv_dtype], device)
    backend = TorchBackend(
        model, pages, context=size.context, max_sequences=config.limits.max_sequences, grammars=grammars
    )
    return BuiltBackend(backend, model.num_bytes, size)


class TorchBackend:
    """Implements `flow.Backend`."""

    def __init__(
        self,
        model: Model,
        pages: Sequence[Pages],
        *,
        context: int,
        max_sequences: int,
        grammars: GrammarCache | None = None,
        ops: Operations | None = None,
    ) -> None:
        """`ops`: other operations than torch's, for tests."""
        spec, device = model.spec, pages[0].keys.device
        self._model, self._pages, self._ops = model, pages, ops or TorchOperations()
        self._slots = SlotTensors(max_sequences, context, pages[0].keys.shape[1], len(spec.cache_groups), device)
        self._sampler = TorchSampler(spec.vocab_size, self._slots.tokens)
        self._outputs = StepOutputs(spec.vocab_size, grammars)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        self._slots.apply(plan.admits, plan.extends)
        for admit in plan.admits:
            self._sampler.admit(admit)
            self._outputs.admit(admit)
        hidden, starts = self._compute(plan.rows)

        def logits(first: int, end: int) -> Tensor:
            return self._logits(hidden[first:end])

        states = TorchHiddenStates(hidden, self._slots.tokens, logits)
        prompts, pooled = self._outputs.read(plan.rows, starts, states)
        draws = self._sample(plan.rows, hidden, starts)
        tokens = None if draws is None else draws.tokens.tolist()
        self._outputs.push(LaunchedStep(plan.number, plan.rows, tokens, draws, prompts, pooled))

    def collect(self) -> StepResult:
        return self._outputs.collect()

    def reset(self) -> None:
        self._outputs.reset()

    def release_memory(self) -> bool:
        return False

    def restore_memory(self) -> None:
        raise AssertionError("nothing was released")

    def _compute(self, rows: Sequence[Row]) -> tuple[Tensor, Sequence[int]]:
        """Hidden states [tokens, hidden], and where each row begins in them, [rows + 1]."""
        batch = gather(rows, self._slots)
        starts: Sequence[int] = batch.host_starts
        # Beyond the last attention only the last token of each row matters, unless a request reads all of them.
        if batch.num_single < batch.num_rows and not self._outputs.needs_hidden(rows):
            batch, starts = replace(batch, logits_indices=batch.starts[1:] - 1), range(len(rows) + 1)
        return self._model.forward(self._ops, batch, self._pages), starts

    def _sample(self, rows: Sequence[Row], hidden: Tensor, starts: Sequence[int]) -> Draws | None:
        sampled = [index for index, row in enumerate(rows) if row.draws]
        if not sampled:
            return None
        slots = [rows[index].slot for index in sampled]
        positions = [rows[index].start + rows[index].count for index in sampled]
        logits = self._logits(hidden[[starts[index + 1] - 1 for index in sampled]])
        return self._sampler.sample(logits, slots, positions, self._outputs.constraints(slots, positions))

    def _logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n, vocab]"""
        return self._ops.logits(hidden, self._model.head, self._model.spec.logit_softcap)
