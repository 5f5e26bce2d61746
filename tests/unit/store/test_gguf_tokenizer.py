"""Tokenizers made from GGUF metadata: small vocabularies whose every token is known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from helpers.tiny_vocabularies import (
    BYTE,
    CONTROL,
    LETTERS,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    byte_level,
    header,
    sentencepiece,
    unigram,
)
from penstock.errors import ModelInvalid
from penstock.store.gguf import Header
from penstock.store.gguf_tokenizer import build_tokenizer
from penstock.store.pretokenizers import PRETOKENIZERS


def built(source: Header) -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer(source))


def tokens_of(source: Header, text: str, *, special: bool = False) -> list[str]:
    tokenizer = built(source)
    return [str(tokenizer.id_to_token(token)) for token in tokenizer.encode(text, add_special_tokens=special).ids]


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS))
def test_every_named_pretokenizer_loads_and_loses_nothing(name: str) -> None:
    tokenizer = built(byte_level(pre=name))
    text = "\n \n\t we'Re 12345.67 ½ naïve ǅ 漢字かな한글 (a|b)  \r\n😀‼ $x+=<y>~` \u2028 ಠ_ಠ"

    ids = tokenizer.encode(text, add_special_tokens=False).ids

    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["Ġ", "Ġ12345", "'", "Re", "ĠĊ", "Ċ", "xY"]),
        ("smollm", ["ĠĠ", "1", "2", "3", "4", "5", "'", "Re", "ĠĊ", "Ċ", "xY"]),
        ("llama-bpe", ["Ġ", "Ġ", "123", "45", "'Re", "ĠĊĊ", "xY"]),
        ("qwen2", ["Ġ", "Ġ", "1", "2", "3", "4", "5", "'Re", "ĠĊĊ", "xY"]),
        ("gpt-4o", ["Ġ", "Ġ", "123", "45", "'Re", "ĠĊĊ", "x", "Y"]),
        ("tekken", ["Ġ", "Ġ", "1", "2", "3", "4", "5", "'Re", "ĠĊĊ", "x", "Y"]),
        ("deepseek-v3", ["ĠĠ", "123", "45", "'Re", "ĠĊĊ", "xY"]),
        ("bloom", ["Ġ", "Ġ12345'Re", "ĠĊĊ", "xY"]),
        ("default", ["Ġ", "Ġ", "123", "45", "'", "Re", "ĠĊ", "Ċ", "xY"]),
    ],
)
def test_words_are_cut_as_the_named_model_cuts_them(name: str, pieces: list[str]) -> None:
    cut = built(byte_level(pre=name)).pre_tokenizer.pre_tokenize_str("  12345'Re \n\nxY")

    assert [piece for piece, _ in cut] == pieces


def test_an_unknown_pretokenizer_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ModelInvalid, match=r"'klingon'.*llama-bpe.*smollm") as error:
        build_tokenizer(byte_level(pre="klingon"))
    assert error.value.param == "model"


@pytest.mark.parametrize("kind", ["bert", "rwkv", "plamo2", "no_vocab", None, 7])
def test_an_unsupported_kind_is_an_error_that_lists_the_supported_ones(kind: Any) -> None:
    with pytest.raises(ModelInvalid, match="gpt2, llama, gemma4, t5"):
        build_tokenizer(byte_level(model=kind))


def test_a_word_that_is_a_token_skips_the_merges_where_the_model_says_so() -> None:
    tokens = [*LETTERS, "ab", "xyz", "<|start|>"]
    changes = {"tokens": tokens, "token_type": None, "merges": ["a b"], "bos_token_id": 258, "eos_token_id": 258}

    assert tokens_of(byte_level(pre="llama-bpe", **changes), "xyz") == ["xyz"]
    assert tokens_of(byte_level(pre="gpt-2", **changes), "xyz") == ["x", "y", "z"]


def test_merges_are_texts_where_no_token_has_a_space() -> None:
    tokens = [*LETTERS, " ", " a", "<|start|>"]
    spaced = byte_level(tokens=tokens, token_type=None, merges=["  a"], bos_token_id=258, eos_token_id=258)

    assert json.loads(build_tokenizer(byte_level()))["model"]["merges"][0] == "a b"
    assert json.loads(build_tokenizer(spaced))["model"]["merges"] == [[" ", "a"]]


@pytest.mark.parametrize(
    ("pre", "add_bos", "add_eos", "expected"),
    [
        ("gpt-2", None, None, ["abc"]),
        ("llama-bpe", None, None, ["<|start|>", "abc"]),
        ("tekken", None, None, ["<|start|>", "abc"]),
        ("llama-bpe", False, None, ["abc"]),
        ("gpt-2", True, True, ["<|start|>", "abc", "<|end|>"]),
        ("gpt-2", False, True, ["abc", "<|end|>"]),
    ],
)
def test_byte_level_sequences_begin_and_end_as_the_file_says(
    pre: str, add_bos: bool | None, add_eos: bool | None, expected: list[str]
) -> None:
    source = byte_level(pre=pre, add_bos_token=add_bos, add_eos_token=add_eos)

    assert tokens_of(source, "abc", special=True) == expected
    assert tokens_of(source, "abc") == ["abc"]


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "expected"),
    [
        (None, None, ["<s>", "▁abc"]),
        (False, None, ["▁abc"]),
        (None, True, ["<s>", "▁abc", "</s>"]),
    ],
)
def test_sentencepiece_sequences_begin_with_bos_unless_the_file_says_otherwise(
    add_bos: bool | None, add_eos: bool | None, expected: list[str]
) -> None:
    source = sentencepiece(add_bos_token=add_bos, add_eos_token=add_eos)

    assert tokens_of(source, "abc", special=True) == expected


def test_the_token_to_add_must_be_named_by_the_file() -> None:
    with pytest.raises(ModelInvalid, match="bos token"):
        build_tokenizer(byte_level(add_bos_token=True, bos_token_id=None))
    with pytest.raises(ModelInvalid, match="eos token is 9999"):
        build_tokenizer(byte_level(add_eos_token=True, eos_token_id=9999))


def test_control_tokens_in_the_text_are_special_and_user_defined_ones_are_not() -> None:
    base = byte_level().metadata["tokenizer.ggml.tokens"]
    types = byte_level().metadata["tokenizer.ggml.token_type"]
    tokenizer = built(byte_level(tokens=[*base, "<tool>"], token_type=[*types, USER_DEFINED]))

    encoding = tokenizer.encode("ab<tool>ab<|end|>", add_special_tokens=False)

    assert encoding.tokens == ["ab", "<tool>", "ab", "<|end|>"]
    assert tokenizer.decode(encoding.ids, skip_special_tokens=True) == "ab<tool>ab"


def test_the_end_token_is_special_even_if_its_type_says_normal() -> None:
    tokenizer = built(byte_level(token_type=None))

    ids = tokenizer.encode("ab<|end|>", add_special_tokens=False).ids

    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"


def test_padding_and_unused_tokens_can_neither_be_typed_nor_decoded() -> None:
    base = byte_level().metadata["tokenizer.ggml.tokens"]
    types = byte_level().metadata["tokenizer.ggml.token_type"]
    count = len(base)
    fillers = [f"[PAD{count}]", "spare", "", ""]
    tokenizer = built(
        byte_level(tokens=[*base, *fillers], token_type=[*types, USER_DEFINED, UNUSED, NORMAL, NORMAL], pre="llama-bpe")
    )

    ids = tokenizer.encode(f"[PAD{count}] spare", add_special_tokens=False).ids

    assert max(ids) < count
    assert tokenizer.decode([*range(count, count + 4)], skip_special_tokens=False) == ""


def test_neighbours_that_make_the_best_token_merge_first() -> None:
    # bc (-1) goes before ab (-2), so "abc" is never reached from ab; "▁abc" cannot be cut into two tokens but ▁a bc
    assert tokens_of(sentencepiece(), "abc") == ["▁abc"]
    assert tokens_of(sentencepiece(add_space_prefix=False), "abc") == ["a", "bc"]
    assert tokens_of(sentencepiece(), "ab") == ["▁ab"]


def test_a_space_goes_before_the_text_unless_the_file_says_otherwise() -> None:
    with_prefix, without = built(sentencepiece()), built(sentencepiece(add_space_prefix=False))

    assert with_prefix.encode("a", add_special_tokens=False).tokens == ["▁a"]
    assert without.encode("a", add_special_tokens=False).tokens == ["a"]
    for tokenizer in (with_prefix, without):
        for text in ("a", " a", "  a b "):
            assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_text_after_a_special_token_begins_with_a_space_again() -> None:
    assert tokens_of(sentencepiece(), "a</s>a") == ["▁a", "</s>", "▁a"]


def test_characters_outside_the_vocabulary_become_their_bytes() -> None:
    tokenizer = built(sentencepiece(add_space_prefix=False))

    encoding = tokenizer.encode("a€\nb", add_special_tokens=False)

    assert encoding.tokens == ["a", "<0xE2>", "<0x82>", "<0xAC>", "<0x0A>", "b"]
    assert tokenizer.decode(encoding.ids) == "a€\nb"


def test_without_byte_tokens_they_become_one_unknown() -> None:
    source = header(model="llama", tokens=["<unk>", "<s>", "</s>", "▁", "a"], scores=[0.0] * 5, add_space_prefix=False)

    assert tokens_of(source, "a€🦙a") == ["a", "<unk>", "a"]


def test_the_text_of_a_byte_or_control_token_is_not_merged_from_letters() -> None:
    letters = list("<0xAs/>▁")
    tokens = ["<unk>", "<s>", "<0x0A>", *letters, "<0", "x0", "A>", "x0A>", "<0x0A", "<s"]
    types = [UNKNOWN, CONTROL, BYTE, *[NORMAL] * (len(tokens) - 3)]
    source = header(
        model="llama", tokens=tokens, token_type=types, scores=[-float(rank) for rank in range(len(tokens))],
        add_space_prefix=False, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip

    assert "<0x0A>" not in tokens_of(source, "<0x0A>")


@pytest.mark.parametrize(
    ("architecture", "expected"), [("phi3", ["<|user|>", "▁a"]), ("llama", ["<|user|>", "▁", "▁a"])]
)
def test_the_markers_of_phi3_swallow_white_space(architecture: str, expected: list[str]) -> None:
    base = sentencepiece().metadata
    source = header(
        architecture,
        model="llama",
        tokens=[*base["tokenizer.ggml.tokens"], "<|user|>"],
        token_type=[*base["tokenizer.ggml.token_type"], CONTROL],
        scores=[*base["tokenizer.ggml.scores"], 0.0],
    )

    assert tokens_of(source, "<|user|> a") == expected


def test_unigram_takes_the_likeliest_segmentation_and_ends_with_eos() -> None:
    assert tokens_of(unigram(), "ab", special=True) == ["▁", "ab", "</s>"]  # -3 is more than -4
    assert tokens_of(unigram(), "a a", special=False) == ["▁a", "▁a"]
    assert tokens_of(unigram(add_eos_token=False), "ab", special=True) == ["▁", "ab"]


def test_unigram_spaces() -> None:
    assert tokens_of(unigram(), "  a  b ") == ["▁", "▁", "▁a", "▁", "▁", "b", "▁"]
    assert tokens_of(unigram(remove_extra_whitespaces=True), "  a  b ") == ["▁a", "▁", "b"]
    assert tokens_of(unigram(add_space_prefix=False), "a") == ["a"]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (byte_level(tokens=[]), "no tokens"),
        (byte_level(tokens="abc"), "tokens is not a list of str"),
        (byte_level(token_type=[NORMAL]), "1 entries for"),
        (byte_level(merges=None), "no merges"),
        (byte_level(merges=["ab"]), "merge 'ab'"),
        (byte_level(merges=["a z"]), "merge 'a z'"),
        (byte_level(tokens=["a", "b", "a"], token_type=None), "tokens 0 and 2 are both 'a'"),
        (byte_level(tokens=["a", "b", "ab", "\udcff"], token_type=None, merges=["a b"]), "not valid UTF-8"),
        (sentencepiece(scores=None), "no scores"),
        (sentencepiece(unknown_token_id=10_000), "unknown token is 10000"),
        (unigram(scores=[0.0]), "1 entries for"),
        (unigram(precompiled_charsmap=[1, 2, 3, 4, 5]), "charsmap is damaged"),
        (unigram(precompiled_charsmap="abc"), "charsmap is not a list of int"),
    ],
)
def test_a_broken_vocabulary_is_an_error_that_says_what_is_wrong(source: Header, what: str) -> None:
    with pytest.raises(ModelInvalid, match=what) as error:
        build_tokenizer(source)
    assert error.value.param == "model"
