"""`gather` against a batch made token by token."""

from importlib import import_module

import pytest
import torch

from helpers.paged_model import Row as PagedRow
from helpers.paged_model import make_batch
from penstock.flow import Admit, Row, SamplingParams
from penstock.forward.inputs import TokenInputs, gather
from penstock.forward.slot_tensors import SlotTensors

BLOCK = 4
SEQUENCES = {  # slot -> tokens, blocks of the two groups
    0: ([10, 11, 12, 13, 14], [[3, 1], [8, 9]]),
    2: (list(range(50, 71)), [[7, 2, 6, 5, 4, 12], [1, 2, 3, 4, 5, 6]]),
    3: ([90], [[9], [15]]),
    4: (list(range(30, 42)), [[20, 21, 22], [25, 24, 23]]),
}


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(device: str) -> SlotTensors:
    slots = SlotTensors(5, 40, BLOCK, 2, torch.device(device))
    slots.apply([Admit(s, t, len(t), SamplingParams(), 0, 0, (), b) for s, (t, b) in SEQUENCES.items()], [])
    return slots


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "rows",
    [
        [(0, 4, 1)],
        [(2, 20, 1), (0, 4, 1), (3, 0, 1)],
        [(4, 0, 12)],
        [(0, 4, 1), (3, 0, 1), (2, 3, 10), (4, 5, 7)],
        [(2, 4, 17), (0, 0, 4)],
    ],
)
def test_matches_a_batch_made_by_hand(rows: list[tuple[int, int, int]], device: str) -> None:
    own = gather if device == "cpu" else import_module("penstock.forward.cuda_inputs").gather
    batch = own([Row(slot, start, count, True) for slot, start, count in rows], make(device))
    made = [PagedRow(SEQUENCES[s][0], start, count, SEQUENCES[s][1]) for s, start, count in rows]
    expected = make_batch(made, BLOCK, torch.device(device))
    for name in ("tokens", "positions", "starts", "lengths"):
        mine, theirs = getattr(batch, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs), name
    for name in ("num_rows", "num_single", "host_starts", "host_lengths"):
        assert getattr(batch, name) == getattr(expected, name), name
    for mine, theirs in zip(batch.maps, expected.maps, strict=True):
        assert torch.equal(mine.targets, theirs.targets)
        assert mine.tables.dtype == torch.int32
        width = -(-max(batch.host_lengths) // BLOCK)
        assert mine.tables.shape == (len(rows), width)
        assert torch.equal(mine.tables, theirs.tables[:, :width])


@pytest.mark.gpu
def test_long_rows_and_what_they_are_written_into() -> None:
    """Rows longer than what a program takes at once, short ones with longer tables, and nothing written beyond."""
    context, block_size, groups = 9000, 2, 2
    on_host, on_device = (
        SlotTensors(4, context, block_size, groups, torch.device(device)) for device in ("cpu", "cuda")
    )
    for slots in (on_host, on_device):
        slots.tokens.copy_(torch.arange(slots.tokens.numel()).view_as(slots.tokens))
        for group, table in enumerate(slots.tables):
            table.copy_(torch.arange(table.numel()).view_as(table) * (group + 1))
    rows = [Row(2, 8999, 1, True), Row(0, 5, 1, True), Row(3, 0, 4097, True), Row(1, 3000, 1023, True)]
    total = sum(row.count for row in rows)
    whole = [torch.full((total + 5,), -1, device="cuda") for _ in range(2 + groups)]
    tokens, positions, *targets = (one[:total] for one in whole)
    on_gpu = import_module("penstock.forward.cuda_inputs").gather
    batch = on_gpu(rows, on_device, TokenInputs(tokens, positions, tuple(targets)))
    expected = gather(rows, on_host)
    assert batch.tokens is tokens
    assert batch.positions is positions
    assert all((one[total:] == -1).all() for one in whole)
    for name in ("tokens", "positions", "starts", "lengths"):
        assert torch.equal(getattr(batch, name).cpu(), getattr(expected, name)), name
    for mine, theirs, given in zip(batch.maps, expected.maps, targets, strict=True):
        assert mine.targets is given
        assert torch.equal(mine.targets.cpu(), theirs.targets)
        assert torch.equal(mine.tables.cpu(), theirs.tables)
