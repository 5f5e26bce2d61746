import pytest
import torch

from penstock.flow import Admit, Extend, SamplingParams
from penstock.forward.slot_arrays import SlotArrays
from penstock.forward.slot_tensors import SlotTensors

Slots = SlotTensors | SlotArrays


def admit(slot: int, tokens: list[int], *blocks: list[int]) -> Admit:
    return Admit(slot, tokens, len(tokens), SamplingParams(), 0, 0, (), list(blocks))


@pytest.fixture(params=["tensors", "arrays"])
def slots(request: pytest.FixtureRequest) -> Slots:
    sizes = {"max_sequences": 3, "context": 20, "block_size": 4, "num_groups": 2}
    return SlotTensors(**sizes, device=torch.device("cpu")) if request.param == "tensors" else SlotArrays(**sizes)


def test_admits_come_before_extends_and_groups_grow_apart(slots: Slots) -> None:
    slots.apply(
        [admit(2, [5, 6, 7], [11], [21, 22]), admit(0, [9], [31], [])],
        [Extend(2, 0, [12, 13]), Extend(0, 1, [41])],
    )
    slots.apply([], [Extend(2, 1, [23]), Extend(2, 0, [14])])
    assert slots.tables[0].tolist() == [[31, 0, 0, 0, 0, 0], [0] * 6, [11, 12, 13, 14, 0, 0]]
    assert slots.tables[1].tolist() == [[41, 0, 0, 0, 0, 0], [0] * 6, [21, 22, 23, 0, 0, 0]]
    assert slots.tokens[2, :3].tolist() == [5, 6, 7]
    assert slots.tokens[0, :1].tolist() == [9]


def test_a_slot_taken_over_keeps_no_block_of_the_last_sequence(slots: Slots) -> None:
    slots.apply([admit(1, [1] * 20, [1, 2, 3, 4, 5], [6, 7, 8, 9, 10])], [])
    slots.apply([admit(1, [2], [3], [])], [Extend(1, 1, [8])])
    assert slots.tables[0][1].tolist() == [3, 0, 0, 0, 0, 0]
    assert slots.tables[1][1].tolist() == [8, 0, 0, 0, 0, 0]
