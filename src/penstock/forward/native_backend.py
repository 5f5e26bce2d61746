"""Steps on a CPU by the native kernels: rows in, sampled tokens out, one call. A step is over when `launch` returns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from penstock.flow import Row, StepPlan, StepResult
from penstock.forward.backend import BackendConfig, BuiltBackend, EndPhase
from penstock.forward.launched_step import LaunchedStep
from penstock.forward.loading import choose_cache_size, load_packed_model
from penstock.forward.memory import host_memory
from penstock.forward.native_model import NativeModel
from penstock.forward.native_pages import allocate_native_pages
from penstock.forward.pooling import Pooled
from penstock.forward.slot_arrays import SlotArrays
from penstock.forward.step_outputs import StepOutputs
from penstock.kernels.cpu.prefault import Prefault
from penstock.kernels.cpu.program import Pool
from penstock.kernels.cpu.record import Recordable
from penstock.kernels.interface import Pages, as_array
from penstock.sample.logprobs import Logprobs
from penstock.sample.native_sampler import NativeSampler
from penstock.startup import process_tuning
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache


def build(config: BackendConfig, grammars: GrammarCache | None, end_phase: EndPhase) -> BuiltBackend:
    process_tuning.freeze_startup_objects()
    model = load_packed_model(config)
    end_phase("weights")
    size = choose_cache_size(config, host_memory())
    backend = NativeBackend(
        model,
        Pool(config.threads),
        allocate_native_pages(config.spec, size, config.kv_dtype),
        context=size.context,
        max_sequences=config.limits.max_sequences,
        step_tokens=config.limits.step_tokens,
        grammars=grammars,
    )
    return BuiltBackend(backend, model.num_bytes, size)


class Model(Recordable, Protocol):
    spec: ModelSpec


class NativeBackend:
    """Implements `flow.Backend`."""

    def __init__(
        self,
        model: Model,
        pool: Pool,
        pages: Sequence[Pages],
        *,
        context: int,
        max_sequences: int,
        step_tokens: int,
        grammars: GrammarCache | None = None,
    ) -> None:
        """`pages` are native ones: see `kernels.interface.Pages`."""
        spec, block_size = model.spec, pages[0].keys.shape[3]
        self._slots = SlotArrays(max_sequences, context, block_size, len(spec.cache_groups))
        self.model = NativeModel(model, spec, pool, pages, self._slots, step_tokens=step_tokens)
        self._sampler = NativeSampler(spec.vocab_size, self._slots.tokens)
        self._outputs = StepOutputs(spec.vocab_size, grammars, most_logit_rows=max_sequences)
        self._prefaults = [Prefault(as_array(pages[group.layers[0]].keys)) for group in spec.cache_groups]

    def launch(self, plan: StepPlan) -> None:
        self._slots.apply(plan.admits, plan.extends)
        if plan.admits or plan.extends:
            self._prefault(plan)
        for admit in plan.admits:
            self._sampler.admit(admit)
            self._outputs.admit(admit)
        rows = plan.rows
        sampled = [row for row in rows if row.sample]
        slots, positions = [row.slot for row in sampled], [row.start + row.count for row in sampled]
        constraints = self._outputs.constraints(slots, positions)
        show = self._outputs.needs_hidden(rows)
        if self._sampler.inspects(slots):
            self.model.run(rows, None, show=show)
            logits = self.model.sampled_logits(len(slots))
            tokens, reports = self._sampler.sample(logits, slots, positions, constraints)
        else:
            draws = self._sampler.prepare(slots, positions, constraints)
            tokens = self.model.run(rows, draws, show=show)
            reports = draws.reports(constraints)
        prompts, pooled = self._read_hidden(rows) if show else ({}, None)
        self._outputs.push(LaunchedStep(plan.number, rows, tokens, reports, prompts, pooled))

    def _read_hidden(self, rows: list[Row]) -> tuple[dict[int, list[Logprobs]], Pooled | None]:
        starts = list(accumulate((row.count for row in rows), initial=0))
        return self._outputs.read(rows, starts, self.model)

    def _prefault(self, plan: StepPlan) -> None:
        for group, memory in enumerate(self._prefaults):
            taken = [admit.blocks[group] for admit in plan.admits]
            taken += [extend.blocks for extend in plan.extends if extend.group == group]
            memory.cover(max((max(blocks) for blocks in taken if blocks), default=0))

    def collect(self) -> StepResult:
        return self._outputs.collect()

    def reset(self) -> None:
        self._outputs.reset()

    def release_memory(self) -> bool:
        return False

    def restore_memory(self) -> None:
        raise AssertionError("nothing was released")
