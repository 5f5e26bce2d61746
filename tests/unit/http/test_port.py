from collections.abc import Iterator

import pytest

from penstock.http.port import OPEN_FILES, bind, listen
from penstock.settings import ServeSettings

resource = pytest.importorskip("resource")


@pytest.fixture
def few_files() -> Iterator[int]:
    """What this process may have open in the end, with less than that for now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    yield OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_shells_limit_of_open_files_is_not_the_servers(few_files: int) -> None:
    with bind(ServeSettings(port=0)) as listener:
        listen(listener)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files
