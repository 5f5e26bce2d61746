import re
from typing import Any

import pytest
from starlette.requests import Request

from penstock.errors import InvalidRequest
from penstock.http.parse.query import Parameter, read_query

PARAMETERS = (
    Parameter(name="word", description="Any."),
    Parameter(name="side", description="Either.", choices=("left", "right"), default="left"),
    Parameter(name="count", description="Some.", type="integer", bounds=(1, 10**12), default=7),
    Parameter(name="share", description="Part.", type="number", bounds=(0, 1)),
    Parameter(name="loud", description="Or not.", type="boolean", default=False),
    Parameter(name="with", description="Both.", type="array", choices=("salt", "oil")),
)
NOTHING = {"word": None, "side": "left", "count": 7, "share": None, "loud": False, "with": []}


def read(query: str) -> dict[str, Any]:
    return read_query(Request({"type": "http", "query_string": query.encode()}), PARAMETERS)


def test_what_is_given_and_what_is_not() -> None:
    assert read("") == NOTHING
    assert read("word=&side=right&count=1000000000000&share=1e-3") == NOTHING | {
        "word": "", "side": "right", "count": 10**12, "share": 0.001,
    }  # fmt: skip
    assert read("loud=true&with=oil&with[]=salt&with%5B%5D=oil") == NOTHING | {
        "loud": True, "with": ["oil", "salt", "oil"],
    }  # fmt: skip
    assert read("loud=false") == NOTHING


@pytest.mark.parametrize(
    ("query", "param", "words"),
    [
        ("words=a", "words", "is not a known parameter; accepted are word, side, count, share, loud, with"),
        ("side=up", "side", "must be one of left, right"),
        ("loud=1", "loud", "must be true or false"),
        ("with=oil&with[]=sand", "with", "must be one of salt, oil"),
        ("side[]=left", "side[]", "is not a known parameter"),
        *[
            (f"count={text}", "count", "an integer from 1 to 1000000000000")
            for text in ("0", "1.0", "-1", "", "²", "9" * 16)
        ],
        *[(f"share={text}", "share", "a number from 0 to 1") for text in ("1.1", "nan", "inf", "", "half")],
    ],
)
def test_what_is_wrong_is_named(query: str, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
        read(query)
    assert caught.value.param == param


def test_what_the_document_says() -> None:
    described = {one["name"]: one["schema"] for one in map(Parameter.openapi, PARAMETERS)}
    assert described["side"] == {"type": "string", "enum": ["left", "right"], "default": "left"}
    assert described["count"] == {"type": "integer", "minimum": 1, "maximum": 10**12, "default": 7}
    assert described["loud"] == {"type": "boolean", "default": False}
    assert described["with"] == {"type": "array", "items": {"enum": ["salt", "oil"]}}
