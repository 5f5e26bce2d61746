"""Proposes what a chain head (EAGLE-1, EAGLE-3, MTP) drafts, on the native kernels.

The head computes an entry for every position that counts, from the target's state there and the token behind it. Its
keys and values lie under the target's block ids like those of a layer, and blocks of the prefix cache have them. (The
last entry of a cached block knows the token that followed there first; a sequence that goes on differently has one
entry that is off.) Drafts continue from the head's own features, and are drawn with the noise of the request.

States wait until drafts are asked for or their block is full, and then make their entries together: weights of the head
are read once for all of them, so sequences without drafts pay little for the head.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.flow import Admit, Row
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.program import Layout, Program, page_types
from penstock.kernels.cpu.record import record_head, record_network
from penstock.model.weights.pack import Quantization
from penstock.speculate.heads.chain_network import ChainNetwork
from penstock.speculate.heads.eagle import read_eagle
from penstock.speculate.heads.mtp import read_mtp
from penstock.speculate.heads.packing import Packer, output_head
from penstock.speculate.heads.spec import ChainHeadSpec
from penstock.speculate.heads.weights import ChainHeadWeights
from penstock.speculate.proposer import DraftRow, Host, Proposal, Taps
from penstock.store.files import ModelFiles
from penstock.store.spec import ModelSpec

FIRST_RATE = 0.6  # how often a draft is right, before anything has been measured
QUANTIZE: Quantization = "int8"


def prepare_eagle(folder: str, target: ModelFiles) -> ChainSource:
    return ChainSource(*read_eagle(Path(folder).expanduser(), target.spec))


def prepare_mtp(_: str, target: ModelFiles) -> ChainSource:
    return ChainSource(*read_mtp(target))


@dataclass(frozen=True, slots=True)
class ChainSource:
    """Implements `DraftSource`."""

    spec: ChainHeadSpec
    weights: ChainHeadWeights

    @property
    def taps(self) -> Taps:
        return self.spec.taps

    @property
    def layers(self) -> ModelSpec:
        return self.spec.layers

    def build(self, host: Host, quantize: Quantization | None = QUANTIZE) -> ChainProposer:
        return ChainProposer(self.spec, self.weights, host, quantize)


class WaitingStates(NamedTuple):
    """The target's states of a sequence that have no entries yet."""

    start: int  # position of the first
    parts: list[Array]  # [positions, width] each, one after the other


class ChainProposer:
    """Implements `Proposer`."""

    kinds = (FIRST_RATE,)
    computes = True

    def __init__(
        self, spec: ChainHeadSpec, weights: ChainHeadWeights, host: Host, quantize: Quantization | None
    ) -> None:
        self.taps: Taps = spec.taps
        self._host, layers, hidden = host, spec.layers, spec.hidden_size
        packer = Packer(layers.norm_eps, quantize)
        network = ChainNetwork(spec, weights, host.embedding, host.context, packer)
        pages = host.allocate_pages(layers)
        self._layout = Layout(
            heads=layers.num_heads,
            kv_heads=layers.num_kv_heads,
            head_dim=layers.head_dim,
            block_size=host.block_size,
            page_types=page_types(pages),
            tokens=host.tokens[:, 1:],  # an entry reads the token behind its position
            tables=(host.block_table,),
            max_tokens=host.step_tokens,
            max_wanted=len(host.tokens),
        )

        def entries(width: int, are_states: bool) -> Program:
            recording = record_network(
                lambda ops, batch, inputs: network.forward(ops, batch, pages, inputs, are_states=are_states),
                width=width,
                head_dim=layers.head_dim,
            )
            return Program(host.pool, recording, self._layout)

        self._true_entries = entries(max(1, len(spec.taps)) * spec.target_hidden_size, True)
        self._drafted_entries = entries(hidden, False) if spec.kind == "eagle3" else self._true_entries
        norm = None if weights.output_norm is None or spec.kind == "mtp" else packer.norm(weights.output_norm)
        head = record_head(
            lambda ops, x: x if norm is None else ops.norm(x, norm),
            output_head(weights.head, host.head, weights.token_ids, packer),
            weights.token_ids,
            width=hidden,
            vocab=host.spec.vocab_size,
        )
        self._head = Program(host.pool, head, self._layout)
        self._features: Array = np.zeros((len(host.tokens), hidden), np.float32)  # by slot, after its last true entry
        self._ends: dict[int, int] = {}  # by slot: position behind its last true entry
        self._waiting: dict[int, WaitingStates] = {}  # by slot

    def admit(self, admit: Admit) -> None:
        self._ends.pop(admit.slot, None)
        self._waiting.pop(admit.slot, None)  # its blocks may be another sequence's by now

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        """A block can be in the prefix cache as soon as it is full, so it has its entries then."""
        end, size, full = 0, self._host.block_size, []
        for row in rows:
            begin, end = end, end + row.count
            waiting = self._waiting.setdefault(row.slot, WaitingStates(row.start, []))
            waiting.parts.append(states[begin:end].copy())
            if (row.start + row.count) // size > waiting.start // size:
                full.append(row.slot)
        self._enter(full)

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        self._enter([row.slot for row in rows if row.slot in self._waiting])
        drafts: list[list[int]] = [[] for _ in rows]
        going_on = [place for place, row in enumerate(rows) if self._ends.get(row.slot) == row.length - 1]
        features = self._features[[rows[place].slot for place in going_on]]
        depth = 0
        while going_on:
            drawn = self._draw([rows[place] for place in going_on], features, depth)
            for place, token in zip(going_on, drawn, strict=True):
                drafts[place].append(token)
            depth += 1
            kept = [index for index, place in enumerate(going_on) if depth < rows[place].most]
            going_on = [going_on[index] for index in kept]
            if going_on:
                entries = [Row(rows[place].slot, rows[place].length + depth - 2, 1, 1) for place in going_on]
                features = self._run(self._drafted_entries, entries, features[kept]).copy()
        return [Proposal(tokens) for tokens in drafts]

    def _enter(self, slots: Sequence[int]) -> None:
        """Compute the entries of all states that wait in these slots."""
        run: list[Row] = []
        inputs: list[Array] = []
        left = most = self._host.step_tokens
        for slot in slots:
            start, parts = self._waiting.pop(slot)
            states = np.concatenate(parts)
            while len(states):
                count = min(left, len(states))
                run.append(Row(slot, start, count, 1))
                inputs.append(states[:count])
                start, states, left = start + count, states[count:], left - count
                if not left:
                    self._enter_run(run, inputs)
                    run, inputs, left = [], [], most
        if run:
            self._enter_run(run, inputs)

    def _enter_run(self, rows: Sequence[Row], inputs: Sequence[Array]) -> None:
        features = self._run(self._true_entries, rows, np.concatenate(inputs))
        for row, feature in zip(rows, features, strict=True):
            self._features[row.slot] = feature
            self._ends[row.slot] = row.start + row.count

    def _draw(self, rows: Sequence[DraftRow], features: Array, depth: int) -> list[int]:
        """Draft number `depth` of each row, from features [rows, hidden]. Writes it to the slot."""
        slots, positions = [row.slot for row in rows], [row.length + depth for row in rows]
        # As rows of the head, whose tokens are those behind their positions:
        packed = array("i", [value for row in rows for value in (row.slot, row.length + depth - 2, 1, 1)])
        kept = array("i", [0] * len(rows))
        table = self._host.draw_table(slots, positions)
        return self._head.run(packed, draws=table, kept=kept, inputs=np.ascontiguousarray(features))

    def _run(self, program: Program, rows: Sequence[Row], inputs: Array) -> Array:
        """Features after the last entry of each row, until the next run."""
        packed = array("i", [value for row in rows for value in (row.slot, row.start, row.count, row.draws)])
        program.run(packed, inputs=np.ascontiguousarray(inputs))
        return program.hidden(len(rows))
