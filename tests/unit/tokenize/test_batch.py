"""Texts that are encoded together, off the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from helpers.tiny_vocabularies import byte_level
from penstock.errors import InvalidRequest
from penstock.store.gguf_tokenizer import build_tokenizer
from penstock.tokenize import Tokenizer
from penstock.tokenize.batch import MAX_BATCH, SHORT_TEXT, BatchEncoder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("batch") / "tokenizer.json"
    path.write_text(build_tokenizer(byte_level(pre="llama-bpe")))
    return Tokenizer.load(path)


class Counting(BatchEncoder):
    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.batches: list[int] = []

    def _start(self) -> None:
        self.batches.append(min(MAX_BATCH, len(self._waiting)))
        super()._start()


def encode(tokenizer: Tokenizer, texts: list[tuple[str, bool]]) -> tuple[list[list[int] | BaseException], list[int]]:
    """What comes of texts that arrive at once, and how many were encoded together each time."""

    async def main() -> tuple[list[list[int] | BaseException], list[int]]:
        encoder = Counting(tokenizer)
        try:
            found = await asyncio.gather(
                *(encoder.encode(text, add_special=special) for text, special in texts), return_exceptions=True
            )
            return found, encoder.batches
        finally:
            encoder.close()

    return asyncio.run(main())


def test_batches_give_what_each_text_gives_alone(tokenizer: Tokenizer) -> None:
    texts = [(f"{place} " * (place * 60), place % 3 == 0) for place in range(2 * MAX_BATCH)]
    found, batches = encode(tokenizer, texts)
    assert found == [tokenizer.encode(text, add_special=special) for text, special in texts]
    assert sum(batches) == sum(len(text) > SHORT_TEXT for text, _ in texts)
    assert len(batches) < sum(batches)
    assert max(batches) <= MAX_BATCH


def test_what_is_wrong_with_one_text_is_no_matter_of_the_others(tokenizer: Tokenizer) -> None:
    good, bad = "good " * SHORT_TEXT, "\ud800" * (SHORT_TEXT + 1)
    found, _ = encode(tokenizer, [(good, True), (bad, True), (good, False)])
    assert isinstance(found[1], InvalidRequest)
    assert [found[0], found[2]] == [tokenizer.encode(good), tokenizer.encode(good, add_special=False)]


def test_one_whose_client_has_gone_is_left_out(tokenizer: Tokenizer) -> None:
    async def main() -> list[int]:
        encoder = BatchEncoder(tokenizer)
        gone = asyncio.ensure_future(encoder.encode("gone " * SHORT_TEXT, add_special=True))
        await asyncio.sleep(0)
        stays = asyncio.ensure_future(encoder.encode("stays " * SHORT_TEXT, add_special=True))
        gone.cancel()
        try:
            return await stays
        finally:
            encoder.close()

    assert asyncio.run(main()) == tokenizer.encode("stays " * SHORT_TEXT)
