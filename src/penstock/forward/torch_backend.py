"""Steps in torch operations on the CPU. `launch` runs the whole step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.adapters import AdapterCache
from penstock.adapters.loader import Loader
from penstock.flow import Row, StepPlan, StepResult
from penstock.flow.step_costs import StepCosts
from penstock.forward.adapter_loading import most_bytes, share_spec
from penstock.forward.backend import BackendConfig, BuiltBackend, EndPhase, Model
from penstock.forward.draft_audit import DraftAudit
from penstock.forward.launched_step import LaunchedStep
from penstock.forward.loading import choose_cache_size
from penstock.forward.memory import CacheSize, host_memory
from penstock.forward.rank_adapters import FollowingAdapters, LeadingLoader
from penstock.forward.rank_forward import Followers, Leader, LeadingForward, agreed_size, follow
from penstock.forward.step_costs import step_costs
from penstock.forward.step_outputs import StepOutputs
from penstock.forward.torch_adapters import TorchAdapter, TorchAdapters, torch_loader
from penstock.forward.torch_audit import compare_draws
from penstock.forward.torch_forward import Computed, Forward, TorchForward
from penstock.forward.torch_hidden_states import TorchHiddenStates
from penstock.forward.torch_loading import allocate_pages, load_model
from penstock.forward.torch_trace import TorchTracer
from penstock.kernels.arrays import Array
from penstock.kernels.interface import Operations, Pages
from penstock.kernels.process_ranks import ProcessRanks
from penstock.kernels.rank_ops import RankOperations
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import Decoder
from penstock.model.load_dense import TORCH_DTYPES
from penstock.model.weights.place import vocabulary_parts
from penstock.sample.constraints import NO_DRAFTS
from penstock.sample.reference.draws import Draws
from penstock.sample.torch_sampler import TorchSampler
from penstock.speculate.drafter import DraftedRows, Drafter, count_kept, draws_at, without_drafts
from penstock.speculate.lookup import PromptLookup
from penstock.speculate.proposer import Proposer
from penstock.startup import process_tuning, torch_process

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache

CPU = torch.device("cpu")


def build(config: BackendConfig, grammars: GrammarCache | None, end_phase: EndPhase) -> BuiltBackend:
    torch_process.check_torch_threads(config.settings.engine.threads)
    model, followers = _load(config), config.followers
    weights_bytes = model.num_bytes + (0 if followers is None else followers.wait_loaded())
    end_phase("weights")
    ops, size = _join(config)
    limits = config.limits
    adapters = _adapters(config) if config.adapter_bytes else None
    backend = TorchBackend(
        model,
        allocate_pages(model.spec, size, TORCH_DTYPES[config.dtype], CPU),
        context=size.context,
        max_sequences=limits.max_sequences,
        grammars=grammars,
        ops=ops,
        most_drafts=limits.step_tokens if config.drafts is not None else 0,
        followers=followers,
        adapters=adapters,
    )
    costs: StepCosts | None = None
    if config.drafts is not None:
        what = (config.files.name, model.num_bytes, "torch", config.dtype, config.threads, config.shard.world)
        groups = len(config.spec.cache_groups)
        costs = step_costs(backend, what, max_rows=limits.max_sequences, num_groups=groups)
        backend.draft_with(PromptLookup, costs, config.audit)
    tracer = None if followers is not None else lambda: TorchTracer(model)
    return BuiltBackend(backend, weights_bytes, size, costs, tracer, adapters)


def follow_rank_0(config: BackendConfig, leader: Leader) -> None:
    """What any other rank does."""
    model, dtype = _load(config), TORCH_DTYPES[config.dtype]
    leader.loaded(model.num_bytes)
    ops, size = _join(config)
    pages = allocate_pages(model.spec, size, dtype, CPU)
    loader = torch_loader(config.spec, dtype, config.shard)
    adapters = FollowingAdapters(lambda adapter, _: loader.start(adapter), loader.take_finished)
    slots = config.limits.max_sequences
    follow(TorchForward(model, pages, ops, context=size.context, slots=slots, adapters=adapters), adapters.work(leader))


def _adapters(config: BackendConfig) -> TorchAdapters:
    spec, dtype, shard = config.spec, TORCH_DTYPES[config.dtype], config.shard
    loader: Loader[TorchAdapter] = torch_loader(spec, dtype, shard)
    if config.followers is not None:
        loader = LeadingLoader(loader, config.followers, shard.world - 1)
    own = share_spec(spec, shard)
    return AdapterCache(loader, lambda adapter: most_bytes(adapter, own, dtype.itemsize), config.adapter_bytes)


def _load(config: BackendConfig) -> Decoder:
    torch_process.set_torch_threads(config.threads)
    process_tuning.freeze_startup_objects()
    return load_model(config, CPU)


def _join(config: BackendConfig) -> tuple[Operations, CacheSize]:
    """One rank of several waits for the others, and has no more KV pages than any of them."""
    rank, world = config.shard
    size = choose_cache_size(config, host_memory(world))
    if world == 1:
        return TorchOperations(), size
    ranks = ProcessRanks(rank, world, config.meeting)
    ops = RankOperations(TorchOperations(), ranks, vocabulary_parts(config.spec.vocab_size, world))
    return ops, agreed_size(size, ranks)


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
        most_drafts: int = 0,
        followers: Followers | None = None,
        adapters: TorchAdapters | None = None,
    ) -> None:
        """`ops`: other operations than torch's, of a rank or for tests. `most_drafts`: of a step. `followers`: the
        other ranks, if this is one of several. `adapters`: None: no sequence has one."""
        ops = ops or TorchOperations()
        own = TorchForward(model, pages, ops, context=context, slots=max_sequences, adapters=adapters)
        self._forward: Forward = own if followers is None else LeadingForward(own, followers)
        self._tokens = own.slots.tokens
        self._sampler = TorchSampler(model.spec.vocab_size, self._tokens, most_drafts)
        self._outputs = StepOutputs(model.spec.vocab_size, grammars)
        self._drafter: Drafter | None = None
        self._audit: DraftAudit | None = None

    def draft_with(self, make: Callable[[Array], Proposer], costs: StepCosts, audit: float = 0.0) -> None:
        """As of the native backend. Logits depend on the number of tokens in a step, by rounding: a token may differ
        from the one drawn without drafts where two are equally likely."""
        tokens = self._tokens.numpy()
        self._drafter = Drafter(make(tokens), costs, tokens)
        self._audit = DraftAudit(audit) if audit else None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        if self._drafter is not None:
            for admit in plan.admits:
                self._drafter.admit(admit)
        self._forward.apply(plan.admits, plan.extends)
        for admit in plan.admits:
            self._sampler.admit(admit)
            self._outputs.admit(admit)
        drafted = None if self._drafter is None else self._draft(self._drafter, plan.rows)
        rows = without_drafts(plan.rows) if drafted is None else drafted.rows
        hidden, starts, drawn_at = self._compute(rows)

        def logits(first: int, end: int) -> Tensor:
            return self._forward.logits(hidden, range(first, end))

        states = TorchHiddenStates(hidden, self._tokens, logits)
        prompts, pooled = self._outputs.read(rows, starts, states)
        if not drawn_at:
            self._outputs.push(LaunchedStep(plan.number, rows, None, None, prompts, pooled))
            return
        drawn_logits = self._forward.logits(hidden, drawn_at)
        if self._drafter is None or drafted is None:
            draws = self._sample(rows, drawn_logits, NO_DRAFTS)
            self._outputs.push(LaunchedStep(plan.number, rows, draws.tokens.tolist(), draws, prompts, pooled))
            return
        before = drawn_logits.clone() if self._audit is not None and self._audit.is_due() else None
        draws = self._sample(rows, drawn_logits, drafted.drafts)
        tokens = draws.tokens.tolist()
        kept = count_kept(drafted, tokens)
        self._drafter.settle(drafted, kept)
        audit = (0, 0) if before is None else self._compare(rows, draws, kept, before)
        step = LaunchedStep(plan.number, rows, tokens, draws, prompts, pooled, kept, drafted.drafts, audit)
        self._outputs.push(step)

    def collect(self) -> StepResult:
        return self._outputs.collect()

    def reset(self) -> None:
        self._outputs.reset()

    def release_memory(self) -> bool:
        self._forward.close()
        return False

    def restore_memory(self) -> None:
        raise AssertionError("nothing was released")

    def _draft(self, drafter: Drafter, rows: list[Row]) -> DraftedRows | None:
        if self._sampler.inspects([row.slot for row in rows]):
            return None
        return drafter.draft(rows, self._outputs.allowed_length)

    def _compute(self, rows: Sequence[Row]) -> Computed:
        return self._forward.compute(rows, all_hidden=self._outputs.needs_hidden(rows))

    def _sample(self, rows: Sequence[Row], logits: Tensor, drafts: Mapping[int, list[int]]) -> Draws:
        slots, positions = draws_at(rows)
        return self._sampler.sample(logits, slots, positions, self._outputs.constraints(slots, positions, drafts))

    def _compare(self, rows: Sequence[Row], draws: Draws, kept: list[int], logits: Tensor) -> tuple[int, int]:
        """The audit of a step with drafts, which drew from `logits`."""
        assert self._audit is not None
        masks = self._sampler.mask_rows(draws_at(rows)[0], draws.constraints)

        def compute(plain: list[Row]) -> tuple[Tensor, torch.dtype]:
            hidden, _, drawn_at = self._compute(plain)
            return self._forward.logits(hidden, drawn_at), hidden.dtype

        def draw(own: Tensor, plain: list[Row], at: list[int]) -> list[int]:
            slots, positions = draws_at(plain)
            mask_rows = {place: masks[row] for place, row in enumerate(at) if row in masks}
            return self._sampler.draw(own, slots, positions, mask_rows).tolist()

        slots, tokens = self._tokens.numpy(), draws.tokens.tolist()
        return compare_draws(self._audit, slots, rows, tokens, kept, logits, compute, draw)
