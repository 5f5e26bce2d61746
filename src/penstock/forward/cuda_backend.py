"""Steps on a CUDA device, as CUDA graphs where there is one for the step, else kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.errors import OutOfMemory
from penstock.flow import Row, StepPlan, StepResult
from penstock.flow.ranks import RankLogits, RankSleep, RankStep, RankWake, RankWork
from penstock.flow.step_costs import StepCosts
from penstock.forward.accepted_draws import AcceptedDraws
from penstock.forward.backend import Model
from penstock.forward.chunk_graphs import ChunkGraphs
from penstock.forward.cuda_drafts import CudaDrafts
from penstock.forward.cuda_graphs import CudaGraphs
from penstock.forward.cuda_inputs import gather
from penstock.forward.cuda_proposer import DeviceHost, FollowedStep, HeadDrafts, HeadNetwork
from penstock.forward.cuda_ranks import ALONE, RankPlace
from penstock.forward.decode_graphs import DecodeGraphs, Replayed
from penstock.forward.draft_audit import DraftAudit
from penstock.forward.launched_step import LaunchedStep
from penstock.forward.rank_forward import Followers
from penstock.forward.readback import Readback
from penstock.forward.releasable_memory import ReleasableMemory
from penstock.forward.slot_arrays import SlotArrays
from penstock.forward.slot_tensors import SlotTensors
from penstock.forward.step_adapters import Adapters, StepAdapters
from penstock.forward.step_outputs import StepOutputs
from penstock.forward.taps import tapped_forward
from penstock.forward.torch_audit import compare_draws
from penstock.forward.torch_hidden_states import TorchHiddenStates
from penstock.kernels.cuda.draft_rows import save_rows
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Pages, as_array
from penstock.kernels.upload import upload
from penstock.sample.constraints import NO_DRAFTS
from penstock.sample.cuda_sampler import CudaSampler
from penstock.sample.reference.draws import Draws
from penstock.speculate.drafter import DraftedRows, Drafter, draws_at, without_drafts
from penstock.speculate.proposer import DraftSource, Proposer
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache

ALIGNED = 16  # bytes: kernels expect vectors to begin at a multiple of them
LEAST_ROWS = 64  # of the largest decode graph of an engine that drafts: a few sequences, and their drafts


@dataclass(frozen=True, slots=True)
class Computed:
    """The forward pass of a step."""

    # [tokens, hidden]; or, where no request reads more, of the last token of each row, or of those drawn from
    hidden: Tensor
    starts: Sequence[int]  # [rows + 1] on the host: where each row begins in `hidden`
    tokens: Tensor  # [tokens] int64: the inputs
    states: Tensor  # [tokens, width] of the taps of a draft head, or `hidden`
    replayed: Replayed | None = None  # of a step that ran as a decode graph


class CudaBackend:
    """Implements `flow.Backend`. `launch` queues the whole step on the device and does not wait: drawn tokens go
    straight to their slots, so that the next step can be launched before this one is collected. Only for rows with a
    constraint does it read back the tokens of the step before, with the forward pass under way."""

    def __init__(
        self,
        model: Model,
        pages: Sequence[Pages],
        *,
        dtype: torch.dtype,
        context: int,
        max_sequences: int,
        grammars: GrammarCache | None = None,
        memory: ReleasableMemory | None = None,
        place: RankPlace = ALONE,
        drafts: DraftSource | None = None,
        head: HeadNetwork | None = None,
        adapters: Adapters | None = None,
        deterministic: bool = False,
    ) -> None:
        """`dtype`: that the model computes in. `place`: among the ranks of a group. `drafts`: of those that rows get
        later, by `draft_with`. `head`: that makes them of states. `adapters`: None: no sequence has one."""
        self._dtype = dtype
        spec, device = model.spec, pages[0].keys.device
        self._cuda_ops, self.deterministic = CudaOperations(deterministic), deterministic
        self._model, self._ops, self._pages = model, place.operations(self._cuda_ops), pages
        # One slot more than sequences: the padding rows of graphs use it.
        self._slots = SlotTensors(max_sequences + 1, context, pages[0].keys.shape[1], len(spec.cache_groups), device)
        self._memory, self._place = memory, place
        self.adapters = StepAdapters(adapters)
        self._max_sequences = max_sequences
        # Of a decode graph, and draws of a step with drafts.
        self._most_rows = max_sequences if drafts is None else max(max_sequences, LEAST_ROWS)
        self._taps = None if drafts is None else drafts.taps
        self._graphs: CudaGraphs | None = None
        self._sampler = CudaSampler(spec.vocab_size, self._slots.tokens, 0 if drafts is None else self._most_rows)
        self._drafts: CudaDrafts | None = None
        self._forget_drafts: Callable[[], None] | None = None
        self._head: HeadDrafts | None = None  # follows each step
        self._saving = head
        if head is not None:
            head.reserve(len(self._slots.tokens), self._slots.block_size)
        self._outputs = StepOutputs(spec.vocab_size, grammars)

    def copy_of_slots(self) -> SlotArrays:
        """On the host, empty: for `draft_with`."""
        tokens, tables = self._slots.tokens, self._slots.tables
        return SlotArrays(len(tokens), tokens.shape[1] - 1, self._slots.block_size, len(tables))

    def draft_with(
        self,
        proposer: Proposer,
        copy: SlotArrays,
        costs: StepCosts,
        audit: float = 0.0,
        forget: Callable[[], None] | None = None,
    ) -> None:
        """Rows get drafts from now on. `copy` of the slots is kept up to date for the proposer. `audit`: the share of
        steps with drafts that are computed again without. `forget`: called when the memory of KV pages was released."""
        drafter = Drafter(proposer, costs, copy.tokens, self._most_rows)
        self._forget_drafts = forget
        self._drafts = CudaDrafts(self._slots.tokens, copy, drafter, on_device=proposer.computes, audit=audit)

    def follow_with(self, head: HeadDrafts) -> None:
        """It follows each step from now on."""
        self._head = head

    def device_host(self, context: int, allocate_pages: Callable[[ModelSpec], list[Pages]]) -> DeviceHost:
        """For a proposer on the device."""
        assert self._graphs is not None
        return DeviceHost(
            context=context,
            slots=self._slots,
            sampler=self._sampler,
            padding_slot=self._max_sequences,
            decode=self._graphs.decode,
            has_constraint=self._outputs.has_constraint,
            allocate_pages=allocate_pages,
        )

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        if self._drafts is not None:
            self._drafts.apply(plan)
        self._slots.apply(plan.admits, plan.extends)
        for admit in plan.admits:
            self._sampler.admit(admit)
            self._outputs.admit(admit)
            self.adapters.admit(admit)
        drafted = None if self._drafts is None else self._draft(self._drafts, plan.rows)
        rows = without_drafts(plan.rows) if drafted is None else drafted.rows
        all_hidden = self._reads_all(rows)
        with self._place.telling(RankStep(plan, all_hidden)):
            computed = self._compute(rows, all_hidden)
        hidden = computed.hidden

        def logits(first: int, end: int) -> Tensor:
            return self._logits(hidden, range(first, end))

        states = TorchHiddenStates(hidden, self._slots.tokens, logits)
        prompts, pooled = self._outputs.read(rows, computed.starts, states)
        if self._drafts is not None and drafted is not None:
            step = self._launch_drafted(self._drafts, drafted, computed)
            step = replace(step, number=plan.number, prompts=prompts, pooled=pooled)
        else:
            draws = self._sample(rows, computed)
            tokens = Readback(draws.tokens) if draws is not None else None
            step = LaunchedStep(plan.number, rows, tokens, draws, prompts, pooled)
            if self._drafts is not None:
                self._drafts.push(rows, None, None)
            self._follow(rows, computed, None)
        self._outputs.push(step)

    def lead(self, followers: Followers) -> None:
        """From now on tell the other ranks of every step."""
        self._place = replace(self._place, followers=followers)

    @torch.inference_mode()
    def follow(self, work: Iterable[RankWork]) -> None:
        """On any rank but 0: do what rank 0 does, and draw nothing."""
        hidden = torch.empty(0)
        for message in work:
            match message:
                case RankStep(plan=plan):
                    self._slots.apply(plan.admits, plan.extends)
                    for admit in plan.admits:
                        self.adapters.admit(admit)
                    hidden = self._compute(plan.rows, message.all_hidden).hidden
                case RankLogits():
                    self._logits(hidden, message.places)
                case RankSleep() | RankWake():
                    with suppress(OutOfMemory):  # rank 0 tells whoever asked
                        self.release_memory() if isinstance(message, RankSleep) else self.restore_memory()

    def collect(self) -> StepResult:
        result = self._outputs.collect()
        if self._drafts is not None:
            self._drafts.settle(result)
        return result

    def reset(self) -> None:
        self._outputs.reset()
        if self._drafts is not None:
            self._drafts.reset()

    def release_memory(self) -> bool:
        """Weights go to the host. Adapters are dropped: they are loaded again. Kernels, graphs, slots and what steps
        compute with stay."""
        if self._memory is None:
            return False
        self.adapters.drop()
        self._place.tell(RankSleep())
        self._place.together(partial(self._memory.weights.save, self._place.world))
        self._memory.release()
        if self._forget_drafts is not None:
            self._forget_drafts()
        torch.cuda.empty_cache()
        return True

    def restore_memory(self) -> None:
        assert self._memory is not None
        self._place.tell(RankWake())
        self._place.together(self._memory.restore, undo=self._memory.release)

    def graphs(self, step_tokens: int) -> CudaGraphs:
        """Of decode steps and of steps with prompt chunks, not captured yet."""
        model, pages, place = self._model, self._pages, self._place
        return CudaGraphs(
            DecodeGraphs(
                model,
                pages,
                self._slots,
                self._sampler,
                padding_slot=self._max_sequences,
                most_rows=self._most_rows,
                place=place,
                deterministic=self.deterministic,
                adapters=self.adapters.memory,
                taps=self._taps or (),
                save=None if self._saving is None else partial(_save, self._saving),
            ),
            ChunkGraphs(model, pages, step_tokens, self._dtype, place, self.deterministic),
        )

    def use(self, graphs: CudaGraphs) -> None:
        """Replay these from now on, wherever a step fits one of them."""
        self._graphs = graphs

    def _draft(self, drafts: CudaDrafts, rows: list[Row]) -> DraftedRows | None:
        if self._sampler.inspects([row.slot for row in rows]):
            return None
        return drafts.draft(rows, self._outputs.allowed_length)

    def _launch_drafted(self, drafts: CudaDrafts, drafted: DraftedRows, computed: Computed) -> LaunchedStep:
        """Draw the tokens of a step with drafts; what else it gives is not in the result."""
        rows, before = drafted.rows, None
        if drafts.audit is not None and drafts.audit.is_due():
            before = self._drawn_logits(rows, computed).clone()
        draws = self._sample(rows, computed, drafted.drafts)
        assert draws is not None
        accepted = AcceptedDraws(rows, draws.tokens, computed.tokens)
        drafts.push(rows, drafted, accepted)
        self._follow(rows, computed, accepted.on_device)
        audit = (0, 0)
        if drafts.audit is not None and before is not None:
            audit = self._compare(drafts.audit, rows, draws, accepted, before)
        kept, tokens = accepted.kept, accepted.tokens
        return LaunchedStep(0, rows, tokens, draws, {}, None, kept, drafted.drafts, audit)

    def _follow(self, rows: list[Row], computed: Computed, kept: Tensor | None) -> None:
        if self._head is not None:
            size = None if computed.replayed is None else computed.replayed.size
            self._head.follow_step(FollowedStep(rows, computed.states, computed.starts, size, kept))

    def _compare(
        self, audit: DraftAudit, rows: list[Row], draws: Draws, accepted: AcceptedDraws, logits: Tensor
    ) -> tuple[int, int]:
        """The audit of a step with drafts, which drew from `logits`. Waits for the device."""
        masks = self._sampler.mask_rows(draws_at(rows)[0], draws.constraints)

        def compute(plain: list[Row]) -> tuple[Tensor, torch.dtype]:
            computed = self._compute(plain, self._reads_all(plain))
            return self._drawn_logits(plain, computed), computed.hidden.dtype

        def draw(own: Tensor, plain: list[Row], at: list[int]) -> list[int]:
            slots, positions = draws_at(plain)
            mask_rows = None if masks is None else [masks[row] for row in at]
            return self._sampler.draw_again(own, slots, positions, mask_rows).tolist()

        tokens, kept = accepted.tokens.tolist(), accepted.kept.tolist()
        return compare_draws(audit, as_array(self._slots.tokens), rows, tokens, kept, logits, compute, draw)

    def _reads_all(self, rows: Sequence[Row]) -> bool:
        """Whether hidden states of more than the last tokens are read."""
        return self._outputs.needs_hidden(rows) or (self._head is not None and self._head.reads_all)

    def _compute(self, rows: Sequence[Row], all_hidden: bool) -> Computed:
        graphs, adapters = self._graphs, self.adapters.begin(rows)
        if graphs is not None and graphs.decode.fits(rows):
            replayed = graphs.decode.run(rows, adapters)
            starts: Sequence[int] = _starts(row.count for row in rows)
            return Computed(replayed.hidden, starts, replayed.tokens, replayed.states, replayed)
        inputs = None
        if graphs is not None and adapters is None and not self._taps:
            inputs = graphs.chunks.inputs(sum(row.count for row in rows))
        batch = gather(rows, self._slots, inputs)
        starts = batch.host_starts
        if graphs is not None and inputs is not None:
            hidden = graphs.chunks.run(batch)
            return Computed(hidden, starts, batch.tokens, hidden)
        # Beyond the last attention only the last token of each row matters, unless a request reads all of them.
        wanted: Sequence[int] | None = None
        if batch.num_single < batch.num_rows and not all_hidden:
            if any(row.draws > 1 for row in rows):
                wanted, starts = _drawn_at(rows, starts), _starts(row.draws for row in rows)
                batch = replace(batch, logits_indices=upload(wanted, batch.tokens.device))
            else:
                wanted, starts = [end - 1 for end in starts[1:]], range(len(rows) + 1)
                batch = replace(batch, logits_indices=batch.starts[1:] - 1)
        self._cuda_ops.deltas = self.adapters.deltas(wanted)
        hidden, states = tapped_forward(self._model, self._ops, batch, self._pages, self._taps)
        return Computed(hidden, starts, batch.tokens, states)

    def _drawn_logits(self, rows: Sequence[Row], computed: Computed) -> Tensor:
        """[draws, vocab], in order."""
        drawn_at, replayed = _drawn_at(rows, computed.starts), computed.replayed
        if replayed is None:
            return self._logits(computed.hidden, drawn_at)
        if len(drawn_at) == len(computed.hidden):
            return replayed.logits
        return replayed.logits.index_select(0, upload(drawn_at, computed.hidden.device))

    def _sample(
        self, rows: Sequence[Row], computed: Computed, drafts: Mapping[int, list[int]] = NO_DRAFTS
    ) -> Draws | None:
        last = _drawn_at(rows, computed.starts)
        if not last:
            return None
        slots, positions = draws_at(rows)
        device, replayed = computed.hidden.device, computed.replayed
        all_sampled = len(last) == len(computed.hidden)
        if not self._place.draws:  # it is here to warm up
            if replayed is None:
                self._logits(computed.hidden, last)
            return Draws(tokens=torch.zeros(len(last), dtype=torch.int64, device=device))
        if replayed is not None and self._sampler.argmax_only(slots):
            argmax = replayed.argmax
            return Draws(tokens=argmax if all_sampled else argmax.index_select(0, upload(last, device)))
        logits = self._drawn_logits(rows, computed)
        replay = replayed.draw if replayed is not None and all_sampled else None
        if replayed is not None and drafts and replay is None:
            replayed.restore_drafts()
        constraints = self._outputs.constraints(slots, positions, drafts)  # last: the device has work meanwhile
        return self._sampler.sample(logits, slots, positions, constraints, replay)

    def _logits(self, hidden: Tensor, packed: Sequence[int]) -> Tensor:
        """[n, vocab] of the packed tokens [n], which ascend."""
        picked = hidden[packed[0] : packed[-1] + 1]
        if len(picked) > len(packed) or picked.data_ptr() % ALIGNED:
            picked = hidden.index_select(0, upload(packed, hidden.device))
        self._cuda_ops.deltas = self.adapters.logits_deltas(packed)
        with self._place.telling(RankLogits(list(packed))):
            return self._ops.logits(picked, self._model.head, self._model.spec.logit_softcap)


def _save(head: HeadNetwork, rows: Tensor, states: Tensor) -> None:
    save_rows(rows, states, head.saved, head.period)


def _starts(counts: Iterable[int]) -> list[int]:
    """Where each begins, and the last one ends."""
    return list(accumulate(counts, initial=0))


def _drawn_at(rows: Sequence[Row], starts: Sequence[int]) -> list[int]:
    """Where the hidden states are that tokens are drawn from, in order: the last ones of each row, which begins at
    `starts[r]`."""
    return [end - back for row, end in zip(rows, starts[1:], strict=True) for back in range(int(row.draws), 0, -1)]
