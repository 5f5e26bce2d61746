from __future__ import annotations

from pathlib import Path

import pytest

from helpers.tiny_vocabularies import byte_level
from penstock.store.gguf_tokenizer import build_tokenizer
from penstock.tokenize import Tokenizer


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Every byte is a token; it puts <|start|> in front of a text."""
    path: Path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    path.write_text(build_tokenizer(byte_level(pre="llama-bpe")))
    return Tokenizer.load(path)
