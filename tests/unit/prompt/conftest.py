from __future__ import annotations

import pytest

from helpers.marker_vocabulary import Vocabularies


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Vocabularies:
    return Vocabularies(tmp_path_factory.mktemp("vocabularies"))
