"""Steps on a CPU by the native kernels: rows in, sampled tokens out, one call. A step is over when `launch` returns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from penstock.flow import Row, StepPlan, StepResult
from penstock.flow.step_costs import StepCosts
from penstock.forward.backend import BackendConfig, BuiltBackend, EndPhase
from penstock.forward.draft_audit import DraftAudit
from penstock.forward.launched_step import LaunchedStep
from penstock.forward.loading import choose_cache_size, load_packed_model
from penstock.forward.memory import CacheSize, host_memory
from penstock.forward.native_adapters import NativeAdapters, native_adapters
from penstock.forward.native_model import NativeModel
from penstock.forward.native_pages import allocate_draft_pages, allocate_kv_memory, native_pages
from penstock.forward.native_trace import NativeTracer
from penstock.forward.pooling import Pooled
from penstock.forward.slot_adapters import SlotAdapters
from penstock.forward.slot_arrays import SlotArrays
from penstock.forward.step_costs import step_costs
from penstock.forward.step_outputs import StepOutputs
from penstock.kernels.cpu import library
from penstock.kernels.cpu.prefault import Prefault
from penstock.kernels.cpu.program import Pool
from penstock.kernels.cpu.record import Recordable
from penstock.kernels.interface import Pages, as_array
from penstock.model import Decoder
from penstock.sample.logprobs import Logprobs
from penstock.sample.native_sampler import NativeSampler, StepDraws
from penstock.speculate.drafter import DraftedRows, Drafter, draws_at, without_drafts, without_wrong_drafts
from penstock.speculate.proposer import Host, Proposer, Taps
from penstock.startup import process_tuning
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache


def build(config: BackendConfig, grammars: GrammarCache | None, end_phase: EndPhase) -> BuiltBackend:
    process_tuning.freeze_startup_objects()
    model = load_packed_model(config)
    end_phase("weights")
    size, source, pool = choose_cache_size(config, host_memory()), config.drafts, Pool(config.threads)
    adapters = native_adapters(config.spec, config.adapter_bytes, codes=model.is_quantized)
    kv_memory = allocate_kv_memory(config.spec, size, config.kv_types)
    backend = NativeBackend(
        model,
        pool,
        native_pages(config.spec, size, config.kv_types, kv_memory),
        context=size.context,
        max_sequences=config.limits.max_sequences,
        step_tokens=config.limits.step_tokens,
        grammars=grammars,
        drafts=source is not None,
        taps=None if source is None else source.taps,
        adapters=adapters,
    )
    costs: StepCosts | None = None
    if source is not None:
        what = (config.files.name, model.num_bytes, library.build(), library.isa(), config.threads)
        limits, groups = config.limits, len(config.spec.cache_groups)
        costs = step_costs(backend, what, max_rows=limits.max_sequences, num_groups=groups)
        backend.draft_with(source.build(_host(config, model, pool, backend, size)), costs, config.audit)
    return BuiltBackend(backend, model.num_bytes, size, costs, lambda: NativeTracer(model), adapters, kv_memory)


def _host(config: BackendConfig, model: Decoder, pool: Pool, backend: NativeBackend, size: CacheSize) -> Host:
    """For the proposer."""
    return Host(
        spec=config.spec,
        embedding=model.embedding,
        head=model.head,
        context=size.context,
        threads=config.threads,
        pool=pool,
        step_tokens=config.limits.step_tokens,
        tokens=backend.slots.tokens,
        block_size=size.block_size,
        block_table=backend.slots.tables[0],
        allocate_pages=lambda spec: allocate_draft_pages(spec, size.blocks[0], size.block_size, config.kv_types),
        draw_table=backend.sampler.draw_table,
    )


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
        drafts: bool = False,
        taps: Taps | None = None,
        adapters: NativeAdapters | None = None,
    ) -> None:
        """`pages` are native ones: see `kernels.interface.Pages`. `drafts`: there will be a drafter, whose proposer
        reads `taps`. `adapters`: None: no sequence has one."""
        spec, block_size = model.spec, pages[0].keys.shape[3]
        self.slots = SlotArrays(max_sequences, context, block_size, len(spec.cache_groups))
        draws = step_tokens if drafts else max_sequences
        self.model = NativeModel(
            model,
            spec,
            pool,
            pages,
            self.slots,
            step_tokens=step_tokens,
            max_draws=draws,
            taps=taps,
            adapted=adapters is not None,
        )
        self.sampler = NativeSampler(spec.vocab_size, self.slots.tokens, step_tokens if drafts else 0)
        self._adapters = SlotAdapters(adapters)
        self._drafter: Drafter | None = None
        self._follower: Proposer | None = None  # reads states of each step
        self._audit: DraftAudit | None = None
        self._outputs = StepOutputs(spec.vocab_size, grammars, most_logit_rows=max_sequences)
        self._prefaults = [Prefault(as_array(pages[group.layers[0]].keys)) for group in spec.cache_groups]

    def draft_with(self, proposer: Proposer, costs: StepCosts, audit: float = 0.0) -> None:
        """Rows get drafts from now on. `audit`: the share of steps with drafts that are computed again without."""
        self._drafter = Drafter(proposer, costs, self.slots.tokens)
        self._follower = None if proposer.taps is None else proposer
        self._audit = DraftAudit(audit) if audit else None

    def launch(self, plan: StepPlan) -> None:
        if self._drafter is not None:
            for admit in plan.admits:
                self._drafter.admit(admit)
        self.slots.apply(plan.admits, plan.extends)
        if plan.admits or plan.extends:
            self._prefault(plan)
        for admit in plan.admits:
            self.sampler.admit(admit)
            self._outputs.admit(admit)
            self._adapters.admit(admit)
        if self._drafter is None:
            return self._launch(plan.number, plan.rows)
        drafted = self._draft(self._drafter, plan)
        if drafted is None:
            return self._launch(plan.number, without_drafts(plan.rows))
        return self._launch_drafted(self._drafter, plan.number, drafted)

    def _launch(self, number: int, rows: list[Row]) -> None:
        sampled = [row for row in rows if row.draws]
        slots, positions = [row.slot for row in sampled], [row.start + row.count for row in sampled]
        constraints = self._outputs.constraints(slots, positions)
        show = self._outputs.needs_hidden(rows)
        if self.sampler.inspects(slots):
            self._run(rows, None, show=show)
            logits = self.model.sampled_logits(len(slots))
            tokens, reports = self.sampler.sample(logits, slots, positions, constraints)
        else:
            draws = self.sampler.prepare(slots, positions, constraints)
            tokens = self._run(rows, draws, show=show)
            reports = draws.reports(constraints)
        if self._follower is not None:
            self._follower.follow(rows, self.model.states(sum(row.count for row in rows)))
        prompts, pooled = self._read_hidden(rows) if show else ({}, None)
        self._outputs.push(LaunchedStep(number, rows, tokens, reports, prompts, pooled))

    def _draft(self, drafter: Drafter, plan: StepPlan) -> DraftedRows | None:
        if self.sampler.inspects([row.slot for row in plan.rows]):  # from the logits, outside the program
            return None
        return drafter.draft(plan.rows, self._outputs.allowed_length)

    def _launch_drafted(self, drafter: Drafter, number: int, drafted: DraftedRows) -> None:
        rows = drafted.rows
        slots, positions = draws_at(rows)
        constraints = self._outputs.constraints(slots, positions, drafted.drafts)
        show = self._outputs.needs_hidden(rows)
        draws, kept = self.sampler.prepare(slots, positions, constraints), array("i", [0] * len(rows))
        tokens = self._run(rows, draws, show=show, kept=kept)
        drafter.settle(drafted, kept)
        if self._follower is not None:
            counted, places = without_wrong_drafts(rows, kept)
            self._follower.follow(counted, self.model.states(sum(row.count for row in rows))[places])
        reports = draws.reports(constraints)
        prompts, pooled = self._read_hidden(rows) if show else ({}, None)
        audit = (0, 0)
        if self._audit is not None and self._audit.is_due():
            audit = self._audit.compare(self.slots.tokens, rows, tokens, kept, partial(self._redraw, draws))
        step = LaunchedStep(number, rows, tokens, reports, prompts, pooled, kept.tolist(), drafted.drafts, audit)
        self._outputs.push(step)

    def _redraw(self, draws: StepDraws, rows: list[Row], at: list[int]) -> list[int]:
        plain = StepDraws([row.slot for row in rows], draws.table.pick(at), None, None)
        return self._run(rows, plain, show=False)

    def _run(
        self, rows: list[Row], draws: StepDraws | None, *, show: bool, kept: array[int] | None = None
    ) -> list[int]:
        found = self._adapters.of(rows)
        adapters = None if found is None else array("Q", [0 if one is None else one.address for one in found])
        return self.model.run(rows, draws, show=show, kept=kept, adapters=adapters)

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
