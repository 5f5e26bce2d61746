import math

import msgspec
import pytest

from penstock.errors import InvalidRequest
from penstock.flow import SamplingParams


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("typical_p", 0),
        ("top_k", -1),
        ("top_k", 1.5),
        ("n", 0),
        ("n", True),
        ("n", 1000),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("repetition_penalty", 0),
        ("presence_penalty", 1000),
        ("frequency_penalty", math.nan),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("seed", 2**64),
        ("timeout_s", 0),
        ("stop", ("",)),
        ("stop", "END"),
        ("stop", ("x",) * 17),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: math.nan}),
    ],
)
def test_a_wrong_value_is_refused_by_name(param: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{param: value})
    assert caught.value.param == param


def test_min_tokens_cannot_exceed_max_tokens() -> None:
    with pytest.raises(InvalidRequest, match="larger than max_tokens"):
        SamplingParams(min_tokens=10, max_tokens=5)


def test_something_must_be_allowed() -> None:
    with pytest.raises(InvalidRequest, match="every allowed token is banned"):
        SamplingParams(allowed_tokens=(5, 6), banned_tokens=(6, 5, 7))


def test_params_cross_a_process_border() -> None:
    params = SamplingParams(logit_bias={7: -100.0}, stop=("a", "b"), seed=2**64 - 1, allowed_tokens=(1, 2), logprobs=0)
    data = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(data, type=SamplingParams) == params


def test_more_biases_than_a_request_may_have() -> None:
    SamplingParams(logit_bias=dict.fromkeys(range(1024), 1.0))
    with pytest.raises(InvalidRequest, match="at most 1024 tokens, got 1025") as caught:
        SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0))
    assert caught.value.param == "logit_bias"
