import msgspec
import pytest

from penstock import Constraint, SamplingParams
from penstock.errors import InvalidRequest


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (Constraint.json_object(), ("json_object", "")),
        (Constraint.json_schema({"b": 1, "a": "ä"}), ("json_schema", '{"b": 1, "a": "ä"}')),
        (Constraint.json_schema(True), ("json_schema", "true")),
        (Constraint.regex("a+"), ("regex", "a+")),
        (Constraint.choice(["ja", "nein"]), ("choice", '["ja", "nein"]')),
        (Constraint.grammar('start: "a"'), ("grammar", 'start: "a"')),
    ],
)
def test_made_of_what_people_have(made: Constraint, written: tuple[str, str]) -> None:
    assert (made.kind, made.source) == written
    params = SamplingParams(constraint=made)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_what_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="one of json_object, json_schema"):
        Constraint("xml", "<a/>")  # type: ignore[arg-type]
    for kind in ("json_schema", "regex", "choice", "grammar"):
        with pytest.raises(InvalidRequest) as caught:
            Constraint(kind)
        assert caught.value.param == f"constraint.{kind}"
    with pytest.raises(InvalidRequest, match="is a text"):
        Constraint("json_schema", {"type": "object"})  # type: ignore[arg-type]
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        Constraint.json_schema(deep)
