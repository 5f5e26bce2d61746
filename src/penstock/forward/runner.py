"""The runner: keeps the slots, runs the model over each plan, draws the tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.flow import Admit, Row, RowResult, SamplingParams, StepPlan, StepResult, TokenLogprobs
from penstock.forward.inputs import gather
from penstock.forward.slots import Slots
from penstock.kernels.interface import Batch, Operations, Pages
from penstock.sample import Draws, Logprobs, Sampler, logprobs
from penstock.store.spec import ModelSpec

# Logits of prompt positions are computed so many numbers at a time: 16 MiB.
PROMPT_LOGITS = 1 << 22


class Model(Protocol):
    spec: ModelSpec
    head: Tensor  # [vocab, hidden], or what `Operations.logits` takes for it

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Launched:
    """A step under way: what it will answer is on the device."""

    number: int
    rows: list[Row]
    draws: Draws | None  # of the rows with `sample`, in order
    prompts: dict[int, list[Logprobs]]  # by row

    def result(self) -> StepResult:
        """Waits for the device."""
        results = [RowResult([]) for _ in self.rows]
        for row, parts in self.prompts.items():
            results[row].prompt_logprobs = [entry for part in parts for entry in part.listed()]
        if self.draws is not None:
            sampled = [result for row, result in zip(self.rows, results, strict=True) if row.sample]
            for result, token in zip(sampled, self.draws.tokens.tolist(), strict=True):
                result.tokens.append(token)
            entries: list[TokenLogprobs] = self.draws.logprobs.listed() if self.draws.logprobs else []
            for row, entry in zip(self.draws.logprob_rows, entries, strict=True):
                sampled[row].logprobs = [entry]
        return StepResult(self.number, results)


class ModelRunner:
    """Implements `flow.Runner`. `launch` orders everything on the device and reads nothing back; a drawn token goes
    straight to its slot, so that the next step can be launched before this one is collected."""

    def __init__(
        self, model: Model, ops: Operations, pages: Sequence[Pages], *, context: int, max_sequences: int
    ) -> None:
        spec, device = model.spec, pages[0].keys.device
        self._model, self._ops, self._pages = model, ops, pages
        self._slots = Slots(max_sequences, context, pages[0].keys.shape[1], len(spec.cache_groups), device)
        self._sampler = Sampler(spec.vocab_size, self._slots.tokens)
        self._prompts: dict[int, tuple[int, int]] = {}  # slots that want prompt logprobs: (how many, prompt length)
        self._launched: deque[Launched] = deque()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        self._slots.apply(plan.admits, plan.extends)
        for admit in plan.admits:
            self._admit(admit)
        batch = gather(plan.rows, self._slots)
        hidden = self._model.forward(self._ops, batch, self._pages)
        prompts = self._measure_prompts(plan.rows, hidden, batch)
        self._launched.append(Launched(plan.number, plan.rows, self._draw(plan.rows, hidden, batch), prompts))

    def collect(self) -> StepResult:
        return self._launched.popleft().result()

    def reset(self) -> None:
        self._launched.clear()

    def warm_up(self, tokens: int) -> None:
        """A real step of a prompt of `tokens` and one that decodes, whose keys and values go to block 0."""
        block_size = self._slots.block_size
        blocks = [[0] * -(-(tokens + 1) // block_size) for _ in self._slots.tables]
        admit = Admit(0, [0] * tokens, tokens, SamplingParams(), 0, 0, (), blocks)
        self.launch(StepPlan(0, [admit], [], [Row(0, 0, tokens, True)]))
        self.launch(StepPlan(0, [], [], [Row(0, tokens, 1, True)]))
        self.collect()
        self.collect()

    def _admit(self, admit: Admit) -> None:
        self._sampler.admit(admit)
        self._prompts.pop(admit.slot, None)
        if admit.params.prompt_logprobs is not None:
            self._prompts[admit.slot] = (admit.params.prompt_logprobs, admit.prompt_length)

    def _draw(self, rows: Sequence[Row], hidden: Tensor, batch: Batch) -> Draws | None:
        sampled = [index for index, row in enumerate(rows) if row.sample]
        if not sampled:
            return None
        slots = [rows[index].slot for index in sampled]
        positions = [batch.host_lengths[index] for index in sampled]
        last = [batch.host_starts[index + 1] - 1 for index in sampled]
        at = torch.tensor([last, slots, positions], device=hidden.device)
        draws = self._sampler.sample(self._logits(hidden, at[0]), slots, positions)
        self._slots.record(at[1], at[2], draws.tokens)
        return draws

    def _measure_prompts(self, rows: Sequence[Row], hidden: Tensor, batch: Batch) -> dict[int, list[Logprobs]]:
        parts: dict[int, list[Logprobs]] = {}
        for index, row in enumerate(rows if self._prompts else ()):
            count, prompt_length = self._prompts.get(row.slot, (0, 0))
            if row.start < prompt_length - 1:
                end = min(row.start + row.count, prompt_length - 1)
                parts[index] = self._measure_prompt(row, end, count, hidden, batch.host_starts[index])
        return parts

    def _measure_prompt(self, row: Row, end: int, count: int, hidden: Tensor, first: int) -> list[Logprobs]:
        """Of the tokens that follow positions row.start .. end - 1, which lie in `hidden` from `first` on."""
        parts = []
        size = max(1, PROMPT_LOGITS // self._model.spec.vocab_size)
        for start in range(row.start, end, size):
            stop = min(start + size, end)
            packed = torch.arange(start, stop, device=hidden.device) + (first - row.start)
            targets = self._slots.tokens[row.slot, start + 1 : stop + 1].to(torch.int64)
            parts.append(logprobs.measure(self._logits(hidden, packed), targets, [count] * (stop - start)))
        return parts

    def _logits(self, hidden: Tensor, packed: Tensor) -> Tensor:
        return self._ops.logits(hidden, packed, self._model.head, self._model.spec.logit_softcap)
