"""Tokenizing for an event loop: texts are encoded in a thread, all that have gathered at a time.

The library lets other threads run meanwhile and spreads a batch over the cores, so a burst of prompts neither holds up
the loop nor is it encoded one by one.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.errors import InvalidRequest
from penstock.tokenize.tokenizer import Tokenizer

SHORT_TEXT = 800  # characters: to encode less takes no longer than to hand it to a thread
MAX_BATCH = 16  # texts: their requests go on in one turn of the loop


class _Text(NamedTuple):
    text: str
    add_special: bool
    tokens: asyncio.Future[list[int]]


class BatchEncoder:
    """Belongs to the event loop it is used in."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._waiting: list[_Text] = []
        self._busy = False

    async def encode(self, text: str, *, add_special: bool) -> list[int]:
        """As `Tokenizer.encode`."""
        if len(text) <= SHORT_TEXT:
            return self._tokenizer.encode(text, add_special=add_special)
        tokens: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Text(text, add_special, tokens))
        if not self._busy:
            self._start()
        return await tokens

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        self._busy = True
        encoding = asyncio.get_running_loop().run_in_executor(self._thread, self._encode, batch)
        encoding.add_done_callback(lambda done: self._finish(batch, done))

    def _finish(self, batch: list[_Text], done: asyncio.Future[list[list[int] | InvalidRequest]]) -> None:
        self._busy = False
        if done.cancelled():
            return
        error = done.exception()
        results = [error] * len(batch) if error is not None else done.result()
        for one, result in zip(batch, results, strict=True):
            if one.tokens.done():  # its client has gone
                continue
            if isinstance(result, BaseException):
                one.tokens.set_exception(result)
            else:
                one.tokens.set_result(result)
        if self._waiting:
            self._start()

    def _encode(self, batch: list[_Text]) -> list[list[int] | InvalidRequest]:
        """In the thread."""
        found: dict[int, list[int] | InvalidRequest] = {}
        for add_special in (True, False):
            places = [place for place, one in enumerate(batch) if one.add_special is add_special]
            texts = [batch[place].text for place in places]
            try:
                found.update(zip(places, self._tokenizer.encode_batch(texts, add_special=add_special), strict=True))
            except InvalidRequest:  # one of them is to blame; the others are not
                found.update({place: self._encode_one(batch[place]) for place in places})
        return [found[place] for place in range(len(batch))]

    def _encode_one(self, one: _Text) -> list[int] | InvalidRequest:
        try:
            return self._tokenizer.encode(one.text, add_special=one.add_special)
        except InvalidRequest as error:
            return error
