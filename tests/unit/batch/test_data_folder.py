from __future__ import annotations

from pathlib import Path

import pytest

from penstock.batch.data_folder import DATABASE, DataFolder
from penstock.errors import StorageUnavailable


def test_a_folder_that_cannot_be_used_is_logged_once_for_each_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that wants to resume its batches tries it every second."""
    (tmp_path / DATABASE).write_bytes(b"not a database" * 1000)
    for _ in range(3):
        with pytest.raises(StorageUnavailable, match="its log says why"):
            DataFolder(tmp_path)
    (logged,) = caplog.messages
    assert "file is not a database" in logged
    broken = (tmp_path / DATABASE).rename(tmp_path / "broken")
    DataFolder(tmp_path).close()
    broken.rename(tmp_path / DATABASE)
    with pytest.raises(StorageUnavailable):
        DataFolder(tmp_path)
    assert caplog.messages == [logged, logged]  # it was usable in between
