from __future__ import annotations

from pathlib import Path

import pytest

from helpers.store_samples import write_gguf
from penstock.errors import ModelNotFound
from penstock.store.listing import known_models
from penstock.store.progress import Progress
from penstock.store.remove import remove
from penstock.store.resolve import resolve

FILE = "Llama-3.2-1B-Instruct-Q4_K_M.gguf"


def hub_cache(folder: Path, name: str, content: bytes) -> tuple[Path, Path]:
    """A snapshot as huggingface_hub keeps it: a link to a blob."""
    blob, snapshot = folder / "blobs" / name, folder / "snapshots" / "main"
    blob.parent.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    blob.write_bytes(content)
    (snapshot / name).symlink_to(blob)
    return snapshot, blob


def test_a_file_of_the_hub_goes_with_its_content(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "x.gguf").read_bytes()
    snapshot, blob = hub_cache(tmp_path / "hub", FILE, content)

    def fetch(hub_id: str, patterns: tuple[str, ...], progress: Progress, *, offline: bool) -> Path:
        return snapshot

    cache = tmp_path / "cache"
    resolve("llama3.2:1b", cache=cache, fetch=fetch)
    assert remove("llama3.2:1b", cache) > len(content)
    assert not blob.exists()
    assert not (snapshot / FILE).is_symlink()
    assert not any(model.pulled for model in known_models(cache))
    with pytest.raises(ModelNotFound, match="penstock list"):
        remove("llama3.2:1b", cache)


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf")
    resolve(str(path), cache=tmp_path / "cache")
    for name in (str(path), str(tmp_path), "..", "nonesuch", ""):
        with pytest.raises(ModelNotFound):
            remove(name, tmp_path / "cache")
    assert path.exists()
