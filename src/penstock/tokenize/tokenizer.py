"""The tokenizer of a model, loaded from its tokenizer.json; a thin layer over the `tokenizers` library.

Decoding is our own wherever tokens are bytes, so that a whole answer and a streamed one are the same text: the library
replaces every byte of a run that is not UTF-8 throughout, which is not known before the run ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from penstock.errors import InvalidRequest, ModelInvalid, ModelNotFound
from penstock.flow import TextStream
from penstock.system import typed
from penstock.tokenize.detokenize import ByteStream, WindowStream
from penstock.tokenize.spelling import Spelling, spelling_of

MAX_ID = 2**32 - 1  # of the library
LONG_LIST = 1024  # tokens
SPARSE = 4  # ids in use, at least one in so many, for a vocabulary to be read id by id


class _Document(msgspec.Struct):
    """What we read of a tokenizer.json ourselves."""

    decoder: dict[str, Any] | None = None


class Tokenizer:
    def __init__(self, backend: tokenizers.Tokenizer, spelling: Spelling | None) -> None:
        self._backend = backend
        self._spelling = spelling
        self._bytes: dict[int, bytes] = {}  # of the tokens seen so far
        self._ids: dict[int, int] = {}  # those of long texts, each by itself
        self._texts: dict[int, str] = {}  # of those that are whole characters and not special
        self._texts_without_special: dict[int, str] = {}  # the same, and "" for special tokens
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(index for index, token in added.items() if token.special)
        self._marks = {token.content: index for index, token in added.items()}

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. An embedding table may have more rows; an id in between may be unused."""
        return self._extent[0]

    @property
    def longest(self) -> int:
        """Characters of the longest token."""
        return self._extent[1]

    @cached_property
    def _extent(self) -> tuple[int, int]:
        """Takes some 10 ms, so no start waits for it. The library's `get_vocab` takes twice as long, without letting
        other threads run."""
        left, longest = self._backend.get_vocab_size(), 1
        for token in range(SPARSE * left):
            if (text := self._backend.id_to_token(token)) is not None:
                left, longest = left - 1, max(longest, len(text))
                if left == 0:
                    return token + 1, longest
        vocabulary = self._backend.get_vocab()  # far between, or several texts have one id
        return max(vocabulary.values(), default=-1) + 1, max(map(len, vocabulary), default=1)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ModelNotFound(f"cannot read the tokenizer {path}: {error.strerror}", param="model") from None
        try:
            document = typed.decode_json(data, _Document)
            backend = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises bare exceptions
            raise ModelInvalid(f"{path} is not a tokenizer that can be used: {error}", param="model") from None
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, spelling_of(document.decoder))

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Special tokens written out in the text, as chat templates do, are read as such in any case; `add_special`
        says whether those the model wants around a sequence are put there."""
        return self.encode_batch([text], add_special=add_special)[0]

    def encode_batch(self, texts: list[str], *, add_special: bool = True) -> list[list[int]]:
        """The same for several, on several cores. Unlike the library's `encode` it lets other threads run meanwhile."""
        try:
            encoded = self._backend.encode_batch_fast(texts, add_special_tokens=add_special)
            return [self._share(one.ids) for one in encoded]
        except TypeError:  # all the library has to say to a lone surrogate
            raise InvalidRequest("the text is not valid Unicode: it has half of a surrogate pair") from None

    def _share(self, tokens: list[int]) -> list[int]:
        """Long lists have one object for a token wherever it occurs. They take a fifth of the memory then, and nothing
        to free: freeing those of a request with a thousand long prompts would hold up the event loop."""
        if len(tokens) < LONG_LIST:
            return tokens
        return list(map(self._ids.setdefault, tokens, tokens))

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Ids outside the vocabulary give no text."""
        if self._spelling is None:
            return self._backend_decode([token for token in tokens if self._shows(token, skip_special)])
        stream = self.text_stream((), skip_special=skip_special)
        return "".join([stream.push(token) for token in tokens]) + stream.flush()

    def text_stream(
        self, prompt: Sequence[int], *, skip_special: bool = True, show: Collection[int] = ()
    ) -> TextStream:
        """`show`: special tokens that are text all the same."""
        if self._spelling is None:
            shows = lambda token: token in show or self._shows(token, skip_special)  # noqa: E731
            return WindowStream(self._backend_decode, shows, prompt)
        spell = self._text_bytes if skip_special else self.token_bytes
        if show and skip_special:
            spell = lambda token: self.token_bytes(token) if token in show else self._text_bytes(token)  # noqa: E731
        texts = self._texts_without_special if skip_special and not show else self._texts
        return ByteStream(spell, prompt, drops_first_space=self._spelling.drops_first_space, texts=texts)

    def mark(self, text: str) -> int | None:
        """The token that was made for this very text, such as `<think>`; None if it takes several."""
        return self._marks.get(text)

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for on its own: bytes of a text, not always whole characters."""
        known = self._bytes.get(token)
        if known is not None:
            return known
        if (text := self._text_of(token)) is None:
            return b""
        spelled = self._backend_decode([token]).encode() if self._spelling is None else self._spelling.to_bytes(text)
        self._bytes[token] = spelled
        if token not in self.special_ids:
            with suppress(UnicodeDecodeError):
                self._texts[token] = self._texts_without_special[token] = spelled.decode()
        return spelled

    def _text_of(self, token: int) -> str | None:
        """As the vocabulary writes it; None of an id that it does not have."""
        return self._backend.id_to_token(token) if 0 <= token <= MAX_ID else None

    def _text_bytes(self, token: int) -> bytes:
        if token not in self.special_ids:
            return self.token_bytes(token)
        self._texts_without_special[token] = ""
        return b""

    def _shows(self, token: int, skip_special: bool) -> bool:
        return self._text_of(token) is not None and not (skip_special and token in self.special_ids)

    def _backend_decode(self, tokens: Sequence[int]) -> str:
        return self._backend.decode(tokens, skip_special_tokens=False)
