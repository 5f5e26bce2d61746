"""Streams against decoding of the whole, by the `tokenizers` library and by hand, over random texts and tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.reference_data import ggml_vocabularies, smollm2
from helpers.tiny_vocabularies import byte_level, sentencepiece
from penstock.flow import TextStream
from penstock.store.gguf import read_header
from penstock.store.gguf_tokenizer import build_tokenizer
from penstock.tokenize import Tokenizer
from penstock.tokenize.detokenize import WindowStream

BYTE_LEVEL = ["bytes", "gpt-2", pytest.param("smollm2", marks=pytest.mark.weights)]
SENTENCEPIECE = ["pieces", "pieces without prefix", "llama-spm"]
TEXTS = st.text(max_size=30) | st.text(alphabet=" ab\n\u0301é漢字🦙👩\u200d👧אב\ufffd\x00\t", max_size=30)
TOKENS = st.lists(st.integers(0, 2**20), max_size=40)  # to be wrapped at the size of the vocabulary


def document(name: str) -> str:
    """The tokenizer.json of a vocabulary these tests know by name."""
    match name:
        case "bytes":
            return build_tokenizer(byte_level())
        case "pieces":
            return build_tokenizer(sentencepiece())
        case "pieces without prefix":
            return build_tokenizer(sentencepiece(add_space_prefix=False))
        case "smollm2":
            path = smollm2().tokenizer
            assert path is not None
            return path.read_text()
    return build_tokenizer(read_header(ggml_vocabularies() / f"ggml-vocab-{name}.gguf"))


def load(text: str) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(text)
        return Tokenizer.load(path)


@cache
def both(name: str) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    text = document(name)
    return load(text), tokenizers.Tokenizer.from_str(text)


@cache
def spelled_bytes(name: str) -> frozenset[int]:
    """The bytes that are tokens: SmolLM2's vocabulary lacks some that its training text did not have."""
    tokenizer, _ = both(name)
    spelled = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    return frozenset(token[0] for token in spelled if len(token) == 1)


def run(stream: TextStream, tokens: Sequence[int]) -> str:
    return "".join([*map(stream.push, tokens), stream.flush()])


def by_hand(tokenizer: Tokenizer, tokens: Sequence[int], *, skip_special: bool, drops_first_space: bool) -> str:
    skipped = tokenizer.special_ids if skip_special else frozenset()
    text = b"".join(tokenizer.token_bytes(token) for token in tokens if token not in skipped).decode(errors="replace")
    return text.removeprefix(" ") if drops_first_space else text


@pytest.mark.parametrize("name", [*BYTE_LEVEL, *SENTENCEPIECE])
@given(text=TEXTS)
@settings(deadline=None)
def test_a_streamed_text_is_the_text_and_grows_by_whole_characters(name: str, text: str) -> None:
    tokenizer, library = both(name)
    tokens = tokenizer.encode(text, add_special=False)
    assume(tokenizer.special_ids.isdisjoint(tokens))
    whole = library.decode(tokens)
    stream = tokenizer.text_stream(())

    shown = ""
    for token in tokens:
        shown += stream.push(token)
        assert whole.startswith(shown)

    assert shown == whole  # nothing was held back at the end of a text
    assert stream.flush() == ""
    assert tokenizer.decode(tokens) == whole
    assert whole == bytes(byte for byte in text.encode() if byte in spelled_bytes(name)).decode(errors="replace")


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(tokens=TOKENS, skip_special=st.booleans())
@settings(deadline=None)
def test_any_byte_level_tokens_give_what_the_library_gives(name: str, tokens: list[int], skip_special: bool) -> None:
    tokenizer, library = both(name)
    tokens = [token % tokenizer.vocab_size for token in tokens]

    streamed = run(tokenizer.text_stream((), skip_special=skip_special), tokens)

    assert streamed == library.decode(tokens, skip_special_tokens=skip_special)
    assert streamed == tokenizer.decode(tokens, skip_special=skip_special)


@pytest.mark.parametrize("name", SENTENCEPIECE)
@given(tokens=TOKENS, skip_special=st.booleans())
@settings(deadline=None)
def test_any_sentencepiece_tokens_give_the_text_of_their_bytes(
    name: str, tokens: list[int], skip_special: bool
) -> None:
    tokenizer, library = both(name)
    tokens = [token % tokenizer.vocab_size for token in tokens]
    prefix = name != "pieces without prefix"

    streamed = run(tokenizer.text_stream((), skip_special=skip_special), tokens)

    assert streamed == by_hand(tokenizer, tokens, skip_special=skip_special, drops_first_space=prefix)
    assert streamed == tokenizer.decode(tokens, skip_special=skip_special)
    if "\ufffd" not in streamed:  # else the library gives up on the valid characters of a run too
        assert streamed == library.decode(tokens, skip_special_tokens=skip_special)


@pytest.mark.parametrize("name", [*BYTE_LEVEL, *SENTENCEPIECE])
@given(prompt=TOKENS, output=TOKENS, skip_special=st.booleans())
@settings(deadline=None)
def test_a_stream_continues_its_prompt(name: str, prompt: list[int], output: list[int], skip_special: bool) -> None:
    tokenizer, _ = both(name)
    prompt, output = ([token % tokenizer.vocab_size for token in tokens] for tokens in (prompt, output))
    of_prompt = tokenizer.text_stream((), skip_special=skip_special)
    given_out = "".join(map(of_prompt.push, prompt))  # but for a character the prompt only began

    streamed = run(tokenizer.text_stream(prompt, skip_special=skip_special), output)

    assert given_out + streamed == tokenizer.decode([*prompt, *output], skip_special=skip_special)


def test_a_character_comes_with_its_last_byte() -> None:
    for name in ("bytes", "pieces without prefix"):
        tokenizer, _ = both(name)
        stream = tokenizer.text_stream(())

        shown = [stream.push(token) for token in tokenizer.encode("a€🦙b", add_special=False)]

        assert shown == ["a", "", "", "€", "", "", "", "🦙", "b"]


def test_bytes_that_can_no_longer_become_a_character_are_replaced_with_the_next_token() -> None:
    for name in ("bytes", "pieces without prefix"):
        tokenizer, _ = both(name)
        euro, a = tokenizer.encode("€", add_special=False), tokenizer.encode("a", add_special=False)
        stream = tokenizer.text_stream(())

        shown = [stream.push(token) for token in (*euro[:2], *a, *euro, *euro[1:2], *euro[:1])]

        assert shown == ["", "", "\ufffda", "", "", "€", "\ufffd", ""]
        assert stream.flush() == "\ufffd"
        assert stream.flush() == ""


def test_the_first_space_is_dropped_only_where_a_text_begins() -> None:
    tokenizer, _ = both("pieces")
    bos, *ab = tokenizer.encode("ab")

    assert run(tokenizer.text_stream([]), ab) == "ab"
    assert run(tokenizer.text_stream([bos]), ab) == "ab"
    assert run(tokenizer.text_stream([bos], skip_special=False), ab) == " ab"
    assert run(tokenizer.text_stream([bos, *ab]), ab * 2) == " ab ab"


def test_a_character_begun_by_the_prompt_is_completed() -> None:
    tokenizer, _ = both("bytes")
    tokens = tokenizer.encode("ab🦙")

    for begun in (1, 2, 3):
        assert run(tokenizer.text_stream(tokens[: 1 + begun]), tokens[1 + begun :]) == "🦙"


@cache
def word_pieces() -> Tokenizer:
    words = ["[UNK]", "[SEP]", "un", "##able", "##s", "go", "."]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.decoder = tokenizers.decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(["[SEP]"])
    return load(backend.to_str())


@given(prompt=st.lists(st.integers(-1, 8), max_size=12), output=st.lists(st.integers(-1, 8), max_size=12))
@settings(deadline=None)
def test_vocabularies_of_another_kind_stream_the_same_text(prompt: list[int], output: list[int]) -> None:
    tokenizer = word_pieces()

    streamed = run(tokenizer.text_stream(prompt), output)

    assert tokenizer.decode(prompt) + streamed == tokenizer.decode([*prompt, *output])
    assert tokenizer.token_bytes(3) == b"##able"


def test_vocabularies_of_another_kind_decode_the_newest_tokens_only() -> None:
    lengths = []

    def decode(tokens: Sequence[int]) -> str:
        lengths.append(len(tokens))
        return "x" * len(tokens)

    looked_at: list[int] = []
    stream = WindowStream(decode, lambda token: not looked_at.append(token), [1] * 1000)

    assert len(looked_at) < 10
    assert run(stream, [1] * 1000) == "x" * 1000
    assert max(lengths) < 10


def test_vocabularies_of_another_kind_never_give_half_a_character() -> None:
    backend = tokenizers.Tokenizer.from_str(build_tokenizer(sentencepiece(add_space_prefix=False)))
    backend.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    tokenizer = load(backend.to_str())
    tokens = tokenizer.encode("a🦙€🦙🦙b", add_special=False)
    stream = tokenizer.text_stream(())

    shown = [stream.push(token) for token in tokens]

    assert [text for text in shown if text] == ["a", "🦙", "€", "🦙", "🦙", "b"]
    assert stream.push(tokens[1]) + stream.flush() == "\ufffd"
    assert any(stream.push(tokens[1]) for _ in range(8))  # not held back for ever
