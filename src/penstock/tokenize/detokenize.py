"""Incremental detokenization: tokens in, text out, never half a character.

A stream continues a prompt: what it gives is what the tokens add to the prompt's text, so a leading space stays, and a
character begun by the prompt's last token is completed. All it gives, put together, is `Tokenizer.decode` of all the
tokens after what the prompt alone gave.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

LONGEST_CHARACTER_BYTES = 4
CONTEXT_TOKENS = 6  # of a prompt: those further back do not change how the next token reads
REPLACEMENT = "\ufffd"


class ByteStream:
    """For vocabularies whose tokens are bytes (`spelling`): constant time per token."""

    def __init__(
        self,
        to_bytes: Callable[[int], bytes],
        prompt: Sequence[int],
        *,
        drops_first_space: bool,
        texts: Mapping[int, str] | None = None,
    ) -> None:
        """`texts`: of tokens that are whole characters, as far as they are known; most tokens are."""
        self._to_bytes = to_bytes
        self._texts = texts if texts is not None else {}
        self._held = b""  # the beginning of a character
        tail = b""
        for token in reversed(prompt):
            tail = to_bytes(token) + tail
            if len(tail) >= LONGEST_CHARACTER_BYTES:  # what came before cannot matter any more
                break
        self._decode(tail)
        self._drop_space = drops_first_space and not tail

    @property
    def fixed_texts(self) -> Mapping[int, str] | None:
        return None if self._held or self._drop_space else self._texts

    @property
    def holds_text(self) -> bool:
        return bool(self._held)

    def push(self, token: int) -> str:
        if not self._held and not self._drop_space and (text := self._texts.get(token)) is not None:
            return text
        return self._trim(self._decode(self._to_bytes(token)))

    def flush(self) -> str:
        return self._trim(self._decode(b"", final=True))

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        data = self._held + data
        text, consumed = codecs.utf_8_decode(data, "replace", final)
        self._held = data[consumed:]
        return text

    def _trim(self, text: str) -> str:
        if self._drop_space and text:
            self._drop_space = False
            return text.removeprefix(" ")
        return text


class WindowStream:
    """For any other vocabulary: decodes the newest tokens with and without the last one. The window begins where text
    was given out last, so it begins with a whole character. `decode` takes the tokens that `shows` lets through."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], shows: Callable[[int], bool], prompt: Sequence[int]
    ) -> None:
        self._decode = decode
        self._shows = shows
        newest_first = (token for token in reversed(prompt) if shows(token))
        self._window = list(islice(newest_first, CONTEXT_TOKENS))[::-1]
        self._num_given = len(self._window)
        self._given = decode(self._window)

    @property
    def fixed_texts(self) -> None:
        return None

    @property
    def holds_text(self) -> bool:
        return len(self._window) > self._num_given

    def push(self, token: int) -> str:
        if not self._shows(token):
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        num_held = len(self._window) - self._num_given
        if text.endswith(REPLACEMENT) and num_held < LONGEST_CHARACTER_BYTES:  # it may become a character yet
            return ""
        return self._give(text)

    def flush(self) -> str:
        return self._give(self._decode(self._window))

    def _give(self, text: str) -> str:
        new = text[len(self._given) :]
        self._window = self._window[self._num_given :]
        self._num_given = len(self._window)
        self._given = self._decode(self._window)
        return new
