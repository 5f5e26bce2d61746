from pathlib import Path

import pytest

from helpers import tiny_models
from penstock.grammar.compiler import Compiler


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary of all bytes and some pairs of letters."""
    folder = tmp_path_factory.mktemp("vocabulary")
    tiny_models.save_tokenizer(folder)
    return folder / "tokenizer.json"


@pytest.fixture(scope="session")
def compiler(tokenizer_file: Path) -> Compiler:
    return Compiler(tokenizer_file, tiny_models.VOCAB, (tiny_models.END_TOKEN,))
