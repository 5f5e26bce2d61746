"""A draft model: a smaller model with the target's vocabulary proposes what it would draw itself, with the noise of the
request. So at any temperature it is right wherever both models favour the same token.

Its keys and values lie in pages of its own, under the target's block ids: a prefix that the target finds in its cache
is found here, too. It computes tokens when it is first asked for drafts behind them, in the blocks of the sequence
(`filled_blocks` knows which of them it has computed before), so sequences without drafts cost it nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import InvalidSetting
from penstock.flow import Admit, Row
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.program import Layout, Program, page_types
from penstock.kernels.cpu.record import record
from penstock.model import PackedForm, load, open_source
from penstock.speculate.filled_blocks import FilledBlocks
from penstock.speculate.proposer import DraftRow, Host, Proposal
from penstock.store.files import ModelFiles
from penstock.store.resolve import resolve_draft_model
from penstock.store.spec import ModelSpec

FIRST_RATE = 0.6  # how often a draft is right, before anything has been measured


def prepare(name: str, target: ModelFiles) -> DraftModelSource:
    files = resolve_draft_model(name)
    _check_vocabulary(files, target)
    return DraftModelSource(files)


@dataclass(frozen=True, slots=True)
class DraftModelSource:
    """Implements `DraftSource`."""

    files: ModelFiles
    taps = None

    @property
    def layers(self) -> ModelSpec:
        return self.files.spec

    def build(self, host: Host) -> DraftModel:
        return DraftModel(self.files, host)


class DraftModel:
    """Implements `Proposer`."""

    kinds = (FIRST_RATE,)
    computes = True
    taps = None

    def __init__(self, files: ModelFiles, host: Host) -> None:
        spec, source = files.spec, open_source(files.weights, files.format)
        model = load(spec, source, PackedForm(), context=host.context, threads=host.threads)
        pages, groups = host.allocate_pages(spec), len(spec.cache_groups)
        recording = record(
            model, pages, groups=groups, head_dim=spec.head_dim, softcap=spec.logit_softcap, wanted_only=True
        )
        layout = Layout(
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=host.block_size,
            page_types=page_types(pages),
            tokens=host.tokens,
            tables=(host.block_table,) * groups,
            max_tokens=host.step_tokens,
            max_wanted=len(host.tokens),
        )
        self._program = Program(host.pool, recording, layout)
        self._host = host
        self._blocks = FilledBlocks(host.tokens, host.block_table, host.block_size)

    def admit(self, admit: Admit) -> None:
        self._blocks.admit(admit.slot)

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        raise AssertionError("it reads no states")

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        behind = [self._blocks.computed(row.slot, row.length - 1) for row in rows]
        self._catch_up(rows, behind)
        drafts: list[list[int]] = [[] for _ in rows]
        for depth in range(max(row.most for row in rows)):
            places = [place for place, row in enumerate(rows) if depth < row.most]
            run = [
                Row(rows[place].slot, behind[place], rows[place].length + depth - behind[place], 1) for place in places
            ]
            for place, token in zip(places, self._run(run), strict=True):
                drafts[place].append(token)
                behind[place] = rows[place].length + depth
        for row, computed in zip(rows, behind, strict=True):
            self._blocks.note(row.slot, computed)
        return [Proposal(tokens) for tokens in drafts]

    def _catch_up(self, rows: Sequence[DraftRow], behind: list[int]) -> None:
        """Until the rest of all rows, up to their newest token, is one step."""
        while sum(row.length - done for row, done in zip(rows, behind, strict=True)) > self._host.step_tokens:
            left, run = self._host.step_tokens, []
            for place, row in enumerate(rows):
                count = min(row.length - 1 - behind[place], left)
                if count > 0:
                    run.append(Row(row.slot, behind[place], count, 0))
                    behind[place] += count
                    left -= count
            self._run(run)

    def _run(self, rows: list[Row]) -> list[int]:
        """Gives the drawn tokens, which are in their slots then."""
        for row in rows:
            self._blocks.overwrite(row.slot, row.start, row.start + row.count)
        packed = array("i", [value for row in rows for value in (row.slot, row.start, row.count, row.draws)])
        drawing = [row for row in rows if row.draws]
        if not drawing:
            return self._program.run(packed)
        slots, positions = [row.slot for row in drawing], [row.start + row.count for row in drawing]
        return self._program.run(packed, draws=self._host.draw_table(slots, positions))


def _check_vocabulary(files: ModelFiles, target: ModelFiles) -> None:
    own, wanted = files.spec.vocab_size, target.spec.vocab_size
    if own != wanted:
        raise InvalidSetting(
            f"speculate: {files.name} has a vocabulary of {own} tokens, {target.name} one of {wanted}: a draft model "
            "needs the same",
            param="speculate",
        )
    if files.tokenizer is None or target.tokenizer is None:
        return
    first, second = files.tokenizer.read_bytes(), target.tokenizer.read_bytes()
    if first != second and _tokens(first) != _tokens(second):
        raise InvalidSetting(
            f"speculate: the tokens of {files.name} are not those of {target.name}: a draft model needs the same "
            "tokenizer",
            param="speculate",
        )


def _tokens(tokenizer: bytes) -> dict[str, int]:
    """Token ids of a tokenizer.json."""
    content = msgspec.json.decode(tokenizer)
    vocabulary: Any = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pairs of token and score
        vocabulary = {entry[0]: place for place, entry in enumerate(vocabulary)}
    return {**vocabulary, **{token["content"]: token["id"] for token in content.get("added_tokens", ())}}
