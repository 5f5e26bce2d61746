import torch

from helpers.sampling import draw_params
from penstock.flow import Admit, SamplingParams
from penstock.sample.reference.penalties import Penalties
from penstock.sample.slot_request import SlotRequest

CPU = torch.device("cpu")
VOCAB = 12


def expected(row: torch.Tensor, tokens: list[int], prompt_length: int, params: SamplingParams) -> torch.Tensor:
    row = row.clone()
    for token in set(tokens):
        row[token] = (
            row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
        )
        count = tokens[prompt_length:].count(token)
        row[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return row


def test_rows_of_different_lengths_penalties_and_slots() -> None:
    """Slot rows hold tokens of earlier sequences beyond the current one's end: they must not count."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCAB, (5, 40), generator=generator, dtype=torch.int32)
    logits = torch.randn(4, VOCAB, generator=generator) * 3
    entries = [  # row, slot, prompt length, position, parameters
        (0, 4, 3, 3, SamplingParams(repetition_penalty=1.7)),
        (1, 0, 2, 9, SamplingParams(presence_penalty=0.8, frequency_penalty=0.3)),
        (3, 2, 1, 40, SamplingParams(repetition_penalty=0.6, presence_penalty=-0.5, frequency_penalty=0.25)),
    ]
    wanted = logits.clone()
    for row, slot, prompt_length, position, params in entries:
        wanted[row] = expected(logits[row], tokens[slot, :position].tolist(), prompt_length, params)
    values = [
        draw_params(params, VOCAB, slot=slot, prompt_length=prompt_length)
        for _, slot, prompt_length, _, params in entries
    ]
    group = Penalties.of([row for row, *_ in entries], values, CPU)
    group.apply(logits, tokens, torch.tensor([3, 9, 5, 40]), 40)
    torch.testing.assert_close(logits, wanted)


def test_only_rows_that_have_one_are_penalised() -> None:
    def penalised(params: SamplingParams) -> bool:
        return SlotRequest.of(Admit(0, [1], 1, params, 0, 0, (), []), VOCAB).penalised

    assert not penalised(SamplingParams())
    assert penalised(SamplingParams(repetition_penalty=1.1))
    assert penalised(SamplingParams(presence_penalty=-0.1))
    assert penalised(SamplingParams(frequency_penalty=0.1))
