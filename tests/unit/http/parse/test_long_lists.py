import json
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from penstock.errors import InvalidRequest
from penstock.http.parse.json_body import decode_object
from penstock.http.parse.long_lists import PIECE, InPieces
from penstock.http.parse.schema import parse

MOST = 3 * PIECE
Small = Annotated[int, Field(ge=0, le=999)]


class Body(BaseModel):
    ids: Annotated[list[Small], Field(min_length=1, max_length=MOST, fail_fast=True), InPieces(MOST)]


def body(ids: list[object]) -> bytes:
    return json.dumps({"ids": ids}).encode()


@pytest.mark.parametrize("length", [1, PIECE, PIECE + 1, MOST])
def test_a_list_is_the_same_in_pieces(length: int) -> None:
    ids = [index % 1000 for index in range(length)]
    assert parse(Body, body([*ids])).ids == ids


@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, MOST - 1])
def test_errors_name_the_entry_in_the_whole_list(place: int) -> None:
    ids: list[object] = [1] * MOST
    ids[place] = 1000
    with pytest.raises(InvalidRequest, match="at most 999") as caught:
        parse(Body, body(ids))
    assert caught.value.param == f"ids[{place}]"


@pytest.mark.parametrize("length", [MOST + 1, 4 * MOST])
def test_a_list_that_is_too_long_is_refused_whatever_is_in_it(length: int) -> None:
    with pytest.raises(InvalidRequest, match=f"ids must have at most {MOST} entries"):
        parse(Body, body(["x"] * length))


def test_integers_of_long_lists_are_shared_and_nothing_else_changes() -> None:
    ids = [5000, 5001] * 20_000
    read = decode_object(body([*ids]))["ids"]
    assert read == ids
    assert len({id(number) for number in read}) < 10  # the last piece is not worth the look-up
    mixed = [1.0, 5000, -7, 2**70, 1] * 20_000
    assert [*map(repr, decode_object(body([*mixed]))["ids"])] == [*map(repr, mixed)]
