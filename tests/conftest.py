import os
import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from helpers.postgresql import postgres_server  # noqa: F401
from penstock.errors import PullFailed
from penstock.store.files import ModelFiles
from penstock.store.resolve import resolve

# A run depends on the code alone: the same examples each time, however long a busy machine takes for one.
hypothesis.settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")

# Threads that spin while they wait make everything crawl where two test runs share a machine. Read as torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell starts its background jobs with Ctrl-C ignored; tests that interrupt themselves would wait for it in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny models gain nothing from more, and lose much where other work runs beside."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """For a test that draws without a seed of its own, whatever ran before it."""
    import torch

    random.seed(0)
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native-library", help="a build of the native CPU kernels to test instead of the installed one")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--native-library"):
        from penstock.kernels.cpu import library

        library.PATH = Path(path).resolve()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def closed_port() -> Iterator[int]:
    """A port of loopback that refuses connections. It is held, so that no other process comes to listen there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The real weights, pulled once into the user's cache."""
    try:
        return resolve("smollm2")
    except PullFailed as error:
        pytest.skip(f"SmolLM2 cannot be pulled: {error}")
