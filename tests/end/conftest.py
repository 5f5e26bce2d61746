from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_models
from server_process import Server

CONTEXT = 16_384  # enough that nothing ends before somebody has had the time to end it


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with a long context."""
    return tiny_models.make("llama", tmp_path_factory.mktemp("tiny"), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[Server]:
    """A server of that model with nothing special about it, for tests that leave it as they found it."""
    with Server(tiny, "--kv-memory", "100MB") as server:
        yield server
