"""What JSON a body may hold, and that decoding it in pieces makes no difference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.http.parse import json_body
from penstock.http.parse.json_body import MAX_VALUES, SHORT_BODY, decode_object

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet='a"\\[]{},: é1'),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(alphabet='a"\\[{'), inner, max_size=4),
    max_leaves=40,
)


def count(value: Any) -> int:
    """Strings, names included, lists and objects."""
    if isinstance(value, dict):
        return 1 + sum(1 + count(inner) for inner in value.values())
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    return int(isinstance(value, str))


def told(decoder: json.JSONDecoder, text: str) -> Any:
    try:
        return decoder.decode(text)
    except (ValueError, InvalidRequest) as error:
        return type(error), str(error)


@given(JSON, st.booleans())
def test_values_are_counted_exactly_where_it_matters(value: Any, escaped: bool) -> None:
    raw = json.dumps({"": value}, ensure_ascii=escaped).encode()
    exact = count({"": value})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "WINDOW", 3)
        patch.setattr(json_body, "MAX_VALUES", exact)
        assert decode_object(raw) == {"": value}
        patch.setattr(json_body, "MAX_VALUES", exact - 1)
        with pytest.raises(InvalidRequest, match=f"the body has more than {exact - 1} strings, lists and objects"):
            decode_object(raw)


@pytest.mark.parametrize("piece", ["[],", "{},", '"",', "[[[]]],"])
def test_a_body_of_many_small_things_is_refused_before_it_is_decoded(
    piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_body, "_DECODER", None)
    monkeypatch.setattr(json_body, "_PIECEWISE", None)
    with pytest.raises(InvalidRequest, match="more than 131072 strings, lists and objects") as caught:
        decode_object(b'{"metadata": [' + piece.encode() * MAX_VALUES + b"0]}")
    assert caught.value.param is None


def test_brackets_within_a_text_do_not_count() -> None:
    text = '[{"' * MAX_VALUES
    assert decode_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}


@given(JSON, st.integers(0, 400), st.sampled_from(["", ",", "]", "[", "0", "-", ".", " ", '"', "1e999", "NaN"]))
@example([1, 2, 3], 14, ",")  # [1, 2, 3,]
@example([1, 2, 3], 7, ",")  # [,1, 2, 3]
def test_in_pieces_it_is_the_same(value: Any, place: int, noise: str) -> None:
    """Of right and of wrong JSON, down to the place of the mistake."""
    text = json.dumps({"": [value, 1, 2.5, -3, [4, 5, 6, 7]]})
    text = text[:place] + noise + text[place:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "PIECE", 5)
        assert told(json_body._PIECEWISE, text) == told(json_body._DECODER, text)


def test_a_long_list_of_numbers() -> None:
    numbers = list(range(2 * SHORT_BODY))
    body = {"prompt": [numbers[::2], numbers[1::2]], "user": "a"}

    assert decode_object(json.dumps(body).encode()) == body
    assert decode_object(json.dumps(body, indent=1).encode()) == body
    long = json.dumps(numbers).encode()
    for wrong, message in [
        (b'{"prompt": ' + long[:-1] + b",]}", r"Expecting value|trailing comma"),
        (b'{"prompt": ' + long[:-1] + b",1e999]}", "too large: 1e999"),
        (b'{"prompt": ' + long[:-1] + b"," + b"9" * 5000 + b"]}", "more than 4300 digits"),
        (b'{"prompt": ' + long + b', "prompt": 1}', '"prompt" twice'),
        (b'{"prompt": ' + long + b', "user": ' + b"[" * 100_000, "nested too deeply"),
    ]:
        with pytest.raises(InvalidRequest, match=message):
            decode_object(wrong)


@given(
    st.text(alphabet='a"\\\n\x01é😀\ud83d\ude00\udc00'),
    st.integers(1, 30),
    st.integers(0, 60),
    st.sampled_from('"\\u\x01'),
)
@example("\ud83d" * 9, 6, 60, "u")
@example("😀", 7, 6, "\\")
def test_texts_in_pieces_are_the_same(value: str, size: int, place: int, noise: str) -> None:
    """Escapes and pairs of surrogates are never cut; in names, too. Of wrong JSON, down to the place of the mistake."""
    for plain in (True, False):
        text = json.dumps({"": value, value or "a": 1}, ensure_ascii=plain)
        for tried in (text, text[:place] + noise + text[place:]):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(json_body, "PIECE", size)
                assert told(json_body._PIECEWISE, tried) == told(json_body._DECODER, tried)


def test_long_bodies_are_not_decoded_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code holds up everybody: it gets pieces."""
    whole = json_body._DECODER

    class Pieces:
        def decode(self, text: str) -> Any:
            assert len(text) <= json_body.PIECE + 2
            return whole.decode(text)

    monkeypatch.setattr(json_body, "_DECODER", Pieces())
    for value in (
        ["x" * SHORT_BODY],
        [[]] * (SHORT_BODY // 4),
        "\\" * SHORT_BODY,
        [{"a": {}}] * (SHORT_BODY // 4),
        {"\n" * SHORT_BODY: [9**999] * 99},
    ):
        assert decode_object(json.dumps({"": value}).encode()) == {"": value}


def test_a_suspicious_escape_is_found_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "WINDOW", 7)
    for ahead in range(30):
        with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
            decode_object(b'{"": "' + b"a" * ahead + b'\\ud800"}')


def test_white_space_and_numbers_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "SHORT_BODY", 0)
    monkeypatch.setattr(json_body, "WINDOW", 4)
    for count in range(12):
        text = '_{"a":_[1,_[]_]_}_'.replace("_", " " * count)
        assert decode_object(text.encode()) == {"a": [1, []]}
    for number, said in ((b"9" * 10_000, "more than 4300 digits"), (b"0." + b"9" * 10_000, "not valid JSON")):
        with pytest.raises(InvalidRequest, match=said):
            decode_object(b'{"a": ' + number + b"}")
