"""Folders of processes that were killed are removed by the next that makes one; all others stay."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.system.private_folder import LOCK, PrivateFolder, remove_abandoned

MAKE_AND_WAIT = """
import sys
from penstock.system.private_folder import PrivateFolder
folder = PrivateFolder()
(folder.path / "engine").write_text("a socket")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_is_removed_once() -> None:
    folder = PrivateFolder()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    folder.remove()
    assert not folder.path.exists()
    with PrivateFolder() as path:
        assert path.exists()
    assert not path.exists()


def test_it_goes_with_its_maker() -> None:
    folder = PrivateFolder()
    path = folder.path
    del folder
    gc.collect()
    assert not path.exists()


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_live_one_is_not() -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert maker.stdin is not None
    assert maker.stdout is not None
    path = Path(maker.stdout.readline().strip())
    with PrivateFolder() as own:
        remove_abandoned()
        assert path.exists()
        assert own.exists()
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    maker.stdin.close()
    maker.stdout.close()
    assert path.exists()
    with PrivateFolder():
        assert not path.exists()


def test_what_is_not_known_to_be_ours_stays(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / LOCK).touch()
    (temporary / "penstock-link").symlink_to(elsewhere)
    (temporary / "penstock-without-lock").mkdir()
    linked = temporary / "penstock-with-a-link-for-a-lock"
    linked.mkdir()
    (linked / LOCK).symlink_to(elsewhere / LOCK)
    (temporary / "penstock-file").touch()
    (temporary / "another").mkdir()
    (temporary / "another" / LOCK).touch()
    before = sorted(temporary.iterdir())
    remove_abandoned()
    assert sorted(temporary.iterdir()) == before
    assert (elsewhere / LOCK).exists()


def test_the_folders_of_other_users_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = temporary / "penstock-theirs"
    theirs.mkdir()
    (theirs / LOCK).touch()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    remove_abandoned()
    assert theirs.exists()
    monkeypatch.setattr(os, "geteuid", lambda: user)
    remove_abandoned()
    assert not theirs.exists()


def test_links_in_an_abandoned_folder_are_not_followed(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = tmp_path_factory.mktemp("kept")
    (kept / "file").touch()
    abandoned = temporary / "penstock-abandoned"
    abandoned.mkdir()
    (abandoned / LOCK).touch()
    (abandoned / "link").symlink_to(kept)
    remove_abandoned()
    assert not abandoned.exists()
    assert (kept / "file").exists()


def test_a_folder_is_made_where_locks_are_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with PrivateFolder() as path:
        assert path.exists()
        assert not (path / LOCK).exists()
    assert not path.exists()
