from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from helpers import tiny_models
from helpers.server_process import Server
from penstock import LLM


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with a long context."""
    return tiny_models.make("llama", tmp_path_factory.mktemp("tiny"), max_position_embeddings=tiny_models.LONG_CONTEXT)


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[Server]:
    """A server of that model with nothing special about it, for tests that leave it as they found it."""
    with Server(tiny, "--kv-memory", "100MB") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """The SDK on the server of the module."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def shared(tiny: Path) -> Iterator[LLM]:
    """The library with the server's model."""
    with LLM(str(tiny), kv_memory="100MB", threads=1, device="cpu") as llm:
        yield llm


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """That of the module. Whatever a test has done, nothing of it is left."""
    yield shared
    shared.check_integrity()
    stats = shared.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 0)
    assert all(usage["held"] == 0 for usage in stats["blocks"])
