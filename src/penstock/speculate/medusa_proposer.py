"""Proposes what Medusa heads draft from one hidden state of the target, on the native kernels: head i the token i + 1
places after the one that the target drew from that state."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.flow import Admit, Row
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.program import Layout, PageType, Program
from penstock.kernels.cpu.record import ProgramRecorder, record_head
from penstock.kernels.interface import Linear
from penstock.model.weights.pack import Quantization
from penstock.speculate.chain_proposer import FIRST_RATE, QUANTIZE
from penstock.speculate.heads.medusa import read_medusa
from penstock.speculate.heads.packing import Packer, output_head
from penstock.speculate.heads.spec import MedusaSpec
from penstock.speculate.heads.weights import MedusaWeights, Projection
from penstock.speculate.proposer import DraftRow, Host, Proposal, Taps
from penstock.store.files import ModelFiles

if TYPE_CHECKING:
    from torch import Tensor


def prepare(folder: str, target: ModelFiles) -> MedusaSource:
    return MedusaSource(*read_medusa(Path(folder).expanduser(), target.spec))


@dataclass(frozen=True, slots=True)
class MedusaSource:
    """Implements `DraftSource`."""

    spec: MedusaSpec
    weights: MedusaWeights
    taps: Taps = ()
    layers: None = None

    def build(self, host: Host, quantize: Quantization | None = QUANTIZE) -> MedusaProposer:
        return MedusaProposer(self.spec, self.weights, host, quantize)


class MedusaProposer:
    """Implements `Proposer`."""

    kinds = (FIRST_RATE,)
    computes = True
    taps: Taps = ()

    def __init__(self, spec: MedusaSpec, weights: MedusaWeights, host: Host, quantize: Quantization | None) -> None:
        self._host = host
        layout = Layout(
            heads=1,
            kv_heads=1,
            head_dim=32,
            block_size=host.block_size,
            page_types=(PageType.F32, PageType.F32),
            tokens=host.tokens,
            tables=(host.block_table,),
            max_tokens=len(host.tokens),
            max_wanted=len(host.tokens),
        )
        packer = Packer(0.0, quantize)

        def program(place: int) -> Program:
            blocks, own = [_gated(block, packer) for block in weights.blocks[place]], weights.heads[place]
            head = output_head(own, host.head, weights.token_ids, packer)
            recording = record_head(
                lambda ops, x: _forward(ops, x, blocks),
                head,
                weights.token_ids,
                width=spec.hidden_size,
                vocab=host.spec.vocab_size,
            )
            return Program(host.pool, recording, layout)

        self._heads = [program(place) for place in range(spec.num_heads)]
        self._states: Array = np.zeros((len(host.tokens), spec.hidden_size), np.float32)  # by slot: the newest
        self._ends: dict[int, int] = {}  # by slot: position behind it

    def admit(self, admit: Admit) -> None:
        self._ends.pop(admit.slot, None)

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        end = 0
        for row in rows:
            end += row.count
            self._states[row.slot] = states[end - 1]
            self._ends[row.slot] = row.start + row.count

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        drafts: list[list[int]] = [[] for _ in rows]
        for depth, head in enumerate(self._heads):
            going_on = [
                (place, row)
                for place, row in enumerate(rows)
                if depth < row.most and self._ends.get(row.slot) == row.length - 1
            ]
            if not going_on:
                break
            slots, positions = [row.slot for _, row in going_on], [row.length + depth for _, row in going_on]
            packed = array(
                "i", [value for slot, end in zip(slots, positions, strict=True) for value in (slot, end - 1, 1, 1)]
            )
            drawn = head.run(packed, draws=self._host.draw_table(slots, positions), inputs=self._states[slots])
            for (place, _), token in zip(going_on, drawn, strict=True):
                drafts[place].append(token)
        return [Proposal(tokens) for tokens in drafts]


def _gated(block: Projection, packer: Packer) -> Linear:
    """silu(x) is silu(x) * 1: a gate whose other factor has no weights, and the bias 1."""
    rows = len(block.weight)
    ones = Projection(np.zeros_like(block.weight), np.ones(rows, np.float32))
    return packer.linear(block, ones, gate="silu")


def _forward(ops: ProgramRecorder, x: Tensor, blocks: Sequence[Linear]) -> Tensor:
    for block in blocks:
        x = ops.add(ops.linear(x, block), onto=x)
    return x
