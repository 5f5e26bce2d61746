"""What the comparison with transformers cannot show: ties, bans and extreme temperatures."""

import math

import pytest
import torch

from helpers.sampling import draw_params, make_filters
from penstock.flow import SamplingParams
from penstock.kernels import sampling_layout
from penstock.sample.reference.draw import WIDTH
from penstock.sample.reference.filters import candidates


def kept(logits: torch.Tensor, *params: SamplingParams) -> list[set[int]]:
    """The same by sorting the whole vocabulary and, where those will do, by the likeliest few."""
    filters = make_filters(params, logits.shape[1])
    whole = candidates(logits, filters, logits.shape[1])
    assert whole.covered.all()
    result = [
        set(tokens[scores > -math.inf].tolist()) for tokens, scores in zip(whole.tokens, whole.scores, strict=True)
    ]
    few = candidates(logits, filters, WIDTH)
    for row in few.covered.nonzero()[:, 0].tolist():
        assert set(few.tokens[row][few.scores[row] > -math.inf].tolist()) == result[row]
    return result


@pytest.mark.parametrize("vocab", [300, 5000])
def test_tokens_of_equal_score_stay_or_go_together(vocab: int) -> None:
    """Also when there are more of them than are looked at first."""
    logits = torch.zeros(1, vocab)
    logits[0, 10] = 5.0
    logits[0, 20:240] = 2.0
    tied = {10, *range(20, 240)}
    assert kept(logits, SamplingParams(top_k=5)) == [tied]
    assert kept(logits, SamplingParams(temperature=0.5, top_p=0.8)) == [tied]
    assert kept(logits, SamplingParams(top_k=1)) == [{10}]


def test_the_last_kept_may_be_the_last_that_was_looked_at() -> None:
    logits = torch.arange(1000, 0, -1).float()[None] / 10
    for k in (127, 128, 129):
        assert kept(logits, SamplingParams(top_k=k)) == [set(range(k))]


def test_banned_tokens_are_never_kept_and_do_not_make_a_row_wide() -> None:
    logits = torch.full((3, 5000), -math.inf)
    logits[:, [7, 9, 4000]] = torch.tensor([1.0, 2.0, 3.0])
    params = [SamplingParams(top_k=40), SamplingParams(top_p=0.9999), SamplingParams(min_p=1e-9)]
    assert candidates(logits, make_filters(params, 5000), WIDTH).covered.all()
    assert kept(logits, *params) == [{7, 9, 4000}] * 3


def test_a_row_without_any_token_left_does_not_break_the_others() -> None:
    logits = torch.full((2, 400), -math.inf)
    logits[1, 5] = 0.0
    params = SamplingParams(top_k=3, top_p=0.9, min_p=0.1, typical_p=0.9)
    assert kept(logits, params, params)[1] == {5}


@pytest.mark.parametrize("temperature", [1e-300, 1e-38, 1e-6, 100.0])
def test_any_temperature_is_safe(temperature: float) -> None:
    logits = torch.tensor([[1000.0, -1000.0, 999.0, 0.0]])
    (result,) = kept(logits, SamplingParams(temperature=temperature, top_p=0.5))
    assert 0 in result
    if temperature < 1:
        assert result == {0}


def test_top_k_of_the_whole_vocabulary_is_no_filter() -> None:
    def enabled(params: SamplingParams) -> bool:
        return sampling_layout.enabled(sampling_layout.FILTERS, draw_params(params, 50))

    assert not enabled(SamplingParams(top_k=50))
    assert enabled(SamplingParams(top_k=49))
    assert not enabled(SamplingParams())


def test_a_row_is_filtered_alike_alone_and_among_others() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 6000, generator=generator) * torch.tensor([0.5, 1, 2, 3, 4, 8])[:, None]
    params = [SamplingParams(temperature=0.9, top_p=0.9), *[SamplingParams(top_p=0.7, min_p=0.001)] * 5]
    together = kept(logits, *params)
    assert together == [kept(logits[row : row + 1], params[row])[0] for row in range(6)]
    assert len({len(tokens) > 128 for tokens in together}) == 2, "both narrow and wide rows must be there"
