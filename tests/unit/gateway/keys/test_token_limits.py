from __future__ import annotations

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Request, SamplingParams
from penstock.gateway.keys.identity import Identity
from penstock.gateway.keys.token_limits import limit_output


def limited(identity: Identity, server_default: int | None = None, **params: int | None) -> int | None:
    request = Request(id="r", params=SamplingParams(**params))  # type: ignore[arg-type]
    return limit_output(request, identity, server_default).params.max_tokens


@pytest.mark.parametrize(
    ("default", "largest", "server", "asked", "expected"),
    [
        (None, None, 7, None, None),  # the pipeline applies the server's default
        (5, None, 7, None, 5),
        (5, None, None, 900, 900),
        (5, 9, None, None, 5),
        (5, 9, None, 9, 9),
        (None, 9, None, None, 9),
        (None, 9, 7, None, 7),
        (None, 9, 70, None, 9),
        (50, 9, None, None, 9),
        (5, 9, None, 0, 0),
    ],
)
def test_max_tokens_of_a_key(
    default: int | None, largest: int | None, server: int | None, asked: int | None, expected: int | None
) -> None:
    identity = Identity(default_max_tokens=default, max_tokens=largest)
    assert limited(identity, server, max_tokens=asked) == expected


def test_the_default_is_not_below_the_minimum_that_was_asked_for() -> None:
    assert limited(Identity(default_max_tokens=5), max_tokens=None, min_tokens=8) == 8


def test_more_than_the_largest_is_rejected_by_name() -> None:
    for name in ("max_tokens", "min_tokens"):
        with pytest.raises(InvalidRequest, match="at most 9") as error:
            limited(Identity(max_tokens=9), **{"max_tokens": None, name: 10})
        assert error.value.param == name


def test_the_default_is_lowered_to_what_fits_the_context() -> None:
    request = Request(id="r", params=SamplingParams(max_tokens=None))
    assert limit_output(request, Identity(default_max_tokens=5)).fit_context


def test_an_embedding_has_no_output() -> None:
    request = Request(id="r", params=SamplingParams(max_tokens=None), task="embed")
    assert limit_output(request, Identity(max_tokens=1)) is request
