"""Removes a pulled model from the disk: what the cache folder has of it, and its files in the hub client's cache."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock.errors import ModelNotFound
from penstock.store import hub, package, sidecar
from penstock.store.catalogue import find_entry
from penstock.store.disk import cache_root, key_of, locked, writing_to


def remove(name: str, cache: Path | None = None) -> int:
    """The bytes that are free again. `name` is one that `penstock list` shows as pulled; files and folders of the user
    are not touched."""
    root = cache or cache_root()
    entry = find_entry(name)
    key = entry.key if entry is not None else key_of(name, name)
    if name.startswith(package.SCHEME) or entry is not None:
        folders = [root / "models" / key, root / "partial" / key]
    else:
        folders = []
    note = root / "hub" / f"{key}.json"
    record = hub.read_record(note)
    if not any(folder.exists() for folder in folders) and record is None:
        raise ModelNotFound(f"{name} is not in the cache folder {root}; `penstock list` shows what is", param="model")
    with writing_to(root), locked(root / "locks" / f"{key}.lock", lambda: None):
        freed = 0
        for folder in folders:
            files = sidecar.read(folder)
            freed += sum(_unlink(path) for path in (files.weights if files else ()) if folder not in path.parents)
            freed += _bytes_in(folder)
            shutil.rmtree(folder, ignore_errors=True)
        if record is not None:
            freed += sum(_unlink(path) for path in sorted(Path(record.folder).rglob("*")) if not path.is_dir())
            shutil.rmtree(record.folder, ignore_errors=True)
            note.unlink(missing_ok=True)
    return freed


def _unlink(path: Path) -> int:
    """A file of the hub client's cache is a link to its content."""
    content = path.resolve()
    size = content.stat().st_size if content.is_file() else 0
    content.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return size


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
