from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.tiny_vocabularies import byte_level, sentencepiece, unigram
from penstock.errors import InvalidRequest, ModelInvalid, ModelNotFound
from penstock.store.gguf import Header
from penstock.store.gguf_tokenizer import build_tokenizer
from penstock.tokenize import Tokenizer
from penstock.tokenize.tokenizer import LONG_LIST


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(source: Header, **changes: Any) -> Tokenizer:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(json.loads(build_tokenizer(source)) | changes))
        return Tokenizer.load(path)

    return load


def test_special_tokens_are_added_on_demand_and_read_from_the_text_always(load: Any) -> None:
    tokenizer = load(byte_level(pre="llama-bpe"))
    start, end = sorted(tokenizer.special_ids)

    assert tokenizer.encode("abc")[0] == start
    assert tokenizer.encode("abc", add_special=False) == tokenizer.encode("abc")[1:]
    assert tokenizer.encode("<|start|>abc<|end|>", add_special=False) == [*tokenizer.encode("abc"), end]


def test_special_tokens_are_shown_or_skipped(load: Any) -> None:
    tokenizer = load(byte_level(pre="llama-bpe"))
    tokens = tokenizer.encode("ab<|end|> abc")

    assert tokenizer.decode(tokens) == "ab abc"
    assert tokenizer.decode(tokens, skip_special=False) == "<|start|>ab<|end|> abc"


@pytest.mark.parametrize("vocabulary", [byte_level, sentencepiece, unigram])
def test_some_special_tokens_may_be_text(load: Any, vocabulary: Any) -> None:
    """Marks of tool calls and of reasoning: they mean something to whoever reads the answer."""
    tokenizer = load(vocabulary())
    *_, other, shown = sorted(tokenizer.special_ids)
    name = tokenizer.decode([shown], skip_special=False)
    stream = tokenizer.text_stream([], show={shown})
    tokens = [other, *tokenizer.encode("ab", add_special=False), shown, other]

    text = "".join(stream.push(token) for token in tokens) + stream.flush()

    assert text.strip() == f"ab{name}"
    assert tokenizer.mark(name) == shown
    assert tokenizer.mark("ab") is None


def test_fixed_texts_are_what_a_push_gives(load: Any) -> None:
    tokenizer = load(byte_level(added=("<|start|>", "<|end|>")))
    *_, shown = sorted(tokenizer.special_ids)
    options: list[dict[str, Any]] = [{}, {"skip_special": False}, {"show": {shown}}]
    for option in options:
        for token in range(tokenizer.vocab_size):
            tokenizer.text_stream((), **option).push(token)
    for option in options:
        fixed = tokenizer.text_stream((), **option).fixed_texts
        assert fixed
        for token, text in fixed.items():
            stream = tokenizer.text_stream((), **option)
            assert (stream.push(token), stream.flush()) == (text, "")
    assert tokenizer.text_stream(()).fixed_texts[shown] == ""
    assert shown not in tokenizer.text_stream((), show={shown}).fixed_texts


def test_the_vocabulary_reaches_to_its_highest_id(load: Any) -> None:
    base = byte_level().metadata["tokenizer.ggml.tokens"]
    tokenizer = load(byte_level(tokens=[*base[:-1], "", "", base[-1]], token_type=None, eos_token_id=len(base) + 1))

    assert tokenizer.vocab_size == len(base) + 2
    assert tokenizer.decode([len(base) + 1], skip_special=False) == "<|end|>"
    assert tokenizer.decode([len(base) - 1, len(base)], skip_special=False) == ""


@pytest.mark.parametrize("source", [byte_level(), sentencepiece(), unigram()])
def test_ids_outside_the_vocabulary_give_nothing(load: Any, source: Header) -> None:
    tokenizer = load(source)
    (a,) = tokenizer.encode("a", add_special=False)
    outside = [tokenizer.vocab_size, -1, 2**31, 2**70]

    assert tokenizer.decode([*outside, a, *outside]) == "a"
    assert [tokenizer.token_bytes(token) for token in outside] == [b""] * 4


def test_a_token_on_its_own_is_its_part_of_the_text(load: Any) -> None:
    tokenizer = load(byte_level())
    tokens = tokenizer.encode(" ab€")

    assert [tokenizer.token_bytes(token) for token in tokens] == [b" ab", b"\xe2", b"\x82", b"\xac"]
    assert tokenizer.token_bytes(max(tokenizer.special_ids)) == b"<|end|>"


def test_a_sentencepiece_token_on_its_own_keeps_its_space(load: Any) -> None:
    tokenizer = load(sentencepiece())
    tokens = tokenizer.encode("ab ab€", add_special=False)

    assert [tokenizer.token_bytes(token) for token in tokens] == [b" ab", b" ab", b"\xe2", b"\x82", b"\xac"]


def test_limits_written_in_the_file_are_not_applied(load: Any) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
    }
    tokenizer = load(byte_level(), truncation=truncation, padding={**padding, "pad_token": "!"})

    assert tokenizer.decode(tokenizer.encode("xyz xyz")) == "xyz xyz"
    assert len(tokenizer.encode("x")) == 1


def test_half_a_surrogate_pair_is_the_callers_mistake(load: Any) -> None:
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        load(byte_level()).encode("a\ud83d")


def test_long_lists_have_one_object_for_each_token(load: Any) -> None:
    tokenizer = load(byte_level())
    once = tokenizer.encode("xyz ", add_special=False)
    first, second = tokenizer.encode_batch(["xyz " * LONG_LIST] * 2, add_special=False)
    assert first == second == once * LONG_LIST
    assert {*map(id, (*first, *second))} <= {*map(id, tokenizer._ids.values())}


def test_no_text_is_no_tokens(load: Any) -> None:
    tokenizer = load(sentencepiece())

    assert tokenizer.encode("", add_special=False) == []
    assert tokenizer.decode([]) == ""


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    for path in (tmp_path / "tokenizer.json", tmp_path):
        with pytest.raises(ModelNotFound, match="cannot read"):
            Tokenizer.load(path)
    for content in (b"", b"\xff\xfe", b"{}", b"[]", b'{"decoder": 7}', b'{"model": {"type": "Abacus"}}'):
        broken = tmp_path / "broken.json"
        broken.write_bytes(content)
        with pytest.raises(ModelInvalid, match=r"broken\.json") as error:
            Tokenizer.load(broken)
        assert error.value.param == "model"
