"""Tokenizers made from GGUF metadata against published references: test vectors, and the models' own tokenizer.json."""

from __future__ import annotations

import hashlib
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers.reference_data import fingerprints, ggml_vocabularies, npm_tokenizer, smollm2
from penstock.errors import ModelInvalid
from penstock.store.gguf import read_header
from penstock.store.gguf_tokenizer import build_tokenizer

WITH_VECTORS = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
]
WITHOUT_VECTORS = ["aquila", "baichuan", "gpt-neox", "nomic-bert-moe"]
UNSUPPORTED = {"bert-bge": "WordPiece: of encoders, which do not generate"}
SEPARATOR = "\n__ggml_vocab_test__\n"
ANY_TEXT = "Ünïcode ½ 漢字かな 한국어 мир\n\n  we'll 12345 (!?) 😀 e\u0301 \t end"


def build(name: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(build_tokenizer(read_header(path(name))))


def path(name: str) -> Path:
    return ggml_vocabularies() / f"ggml-vocab-{name}.gguf"


def vectors(name: str) -> list[tuple[str, list[int]]]:
    texts = Path(f"{path(name)}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{path(name)}.out").read_text().splitlines()
    if len(texts) == len(lines) + 1:
        assert texts.pop() == ""  # after the last separator
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=True)]


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_tokens_equal_the_published_vectors(name: str) -> None:
    tokenizer = build(name)
    if name == "qwen35":  # these vectors are llama.cpp's own, which does not compose characters; the model's files do
        tokenizer.normalizer = tokenizers.normalizers.Sequence([])
    cases = vectors(name)

    got = [(text, tokenizer.encode(text, add_special_tokens=False).ids) for text, _ in cases]

    assert len(cases) >= 40
    assert got == cases
    assert [tokenizer.decode(ids) for _, ids in cases] == [text for text, _ in cases]


@pytest.mark.parametrize("name", WITHOUT_VECTORS)
def test_vocabularies_without_vectors_lose_nothing(name: str) -> None:
    tokenizer = build(name)

    ids = tokenizer.encode(ANY_TEXT).ids

    text = tokenizer.decode(ids)
    if name == "nomic-bert-moe":  # folds compatible characters and white space, as its character map says
        assert text == " ".join(unicodedata.normalize("NFKC", ANY_TEXT).split())
    else:
        assert text == ANY_TEXT


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_kinds_are_refused(name: str) -> None:
    with pytest.raises(ModelInvalid, match="not supported"):
        build(name)


def test_every_published_vocabulary_is_accounted_for() -> None:
    names = {file.stem.removeprefix("ggml-vocab-") for file in ggml_vocabularies().glob("*.gguf")}

    assert names == {*WITH_VECTORS, *WITHOUT_VECTORS, *UNSUPPORTED}


@pytest.mark.weights
def test_the_tokens_of_smollm2_are_those_of_its_makers() -> None:
    (weights,) = smollm2().weights
    tokenizer = tokenizers.Tokenizer.from_str(build_tokenizer(read_header(weights)))
    text, digests = fingerprints()

    ids = tokenizer.encode(text).ids

    assert hashlib.sha256(str(ids).encode()).hexdigest() == digests["smollm"]
    assert tokenizer.decode(ids) == text


@cache
def pair(reference: str, name: str) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    return tokenizers.Tokenizer.from_file(str(npm_tokenizer(reference))), build(name)


def added(tokenizer: tokenizers.Tokenizer) -> set[str]:
    return {token.content for token in tokenizer.get_added_tokens_decoder().values()}


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.text(alphabet=" \t\r\n\u00a0\u3000", max_size=6),
        st.text(alphabet="0123456789½²٣,.", max_size=8),
        st.text(alphabet="ae\u0301\u0300nй漢か한नि😀\u200d", max_size=8),
        st.sampled_from([" I'm", "'LL", "don't", "we'Ve", " the", "Hello", "===", "://", "<|", "!!", "naïve"]),
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize(
    ("reference", "name"),
    [("gpt2", "gpt-2"), ("llama3_2", "llama-bpe"), ("qwen2_5", "qwen2"), ("qwen3", "qwen2")],
)
@given(text=TEXTS)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_tokens_equal_those_of_the_models_own_tokenizer(reference: str, name: str, text: str) -> None:
    theirs, ours = pair(reference, name)
    assume(not any(token in text for token in added(theirs) ^ added(ours)))  # of another release of the same family

    assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False).ids
