from __future__ import annotations

from pathlib import Path

import pytest

from helpers.store_samples import pip_environment, write_gguf, write_hf_folder, write_wheel
from penstock.store import pull, sidecar
from penstock.store.catalogue import CATALOGUE, Entry
from penstock.store.listing import known_models
from penstock.store.package import PackageFile
from penstock.store.progress import Progress, silent
from penstock.store.resolve import resolve


def test_an_empty_cache_lists_the_catalogue(tmp_path: Path) -> None:
    models = known_models(tmp_path / "nowhere")
    assert [model.name for model in models] == list(CATALOGUE)
    assert not any(model.pulled or model.disk_bytes for model in models)
    assert [(model.license, model.size_bytes) for model in models] == [
        (entry.license, entry.size_bytes) for entry in CATALOGUE.values()
    ]


def test_what_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in pip_environment(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    cache, path = tmp_path / "cache", write_gguf(tmp_path / "x.gguf")
    write_wheel(tmp_path / "wheels", "w", "1", {"x.gguf": path.read_bytes()})
    entry = Entry(name="tiny", parts=(PackageFile("w", "1", "x.gguf"),), filename="tiny.gguf", license="MIT")
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    snapshot = write_hf_folder(tmp_path / "snapshot")

    def fetch(hub_id: str, patterns: tuple[str, ...], progress: Progress, *, offline: bool) -> Path:
        return snapshot

    pull.ensure(entry, cache, silent)
    resolve("pypi:w/x.gguf", cache=cache)
    resolve("org/model", cache=cache, fetch=fetch)
    resolve(str(path), cache=cache)  # the user's own file: not the cache's to list
    (cache / "models" / "rubbish").mkdir()
    (cache / "hub" / "rubbish.json").write_text("{")

    models = {model.name: model for model in known_models(cache)}
    assert list(models) == [*CATALOGUE, "org/model", "pypi:w/x.gguf"]
    assert models["tiny"].pulled
    assert models["tiny"].disk_bytes > path.stat().st_size
    assert models["pypi:w/x.gguf"].size_bytes == path.stat().st_size
    assert models["pypi:w/x.gguf"].license == "mit"
    assert models["org/model"].size_bytes == (snapshot / "model.safetensors").stat().st_size


def test_a_stale_sidecar_does_not_hide_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, entry = next(iter(CATALOGUE.items()))
    folder = tmp_path / "models" / entry.key
    folder.mkdir(parents=True)
    (folder / entry.filename).write_bytes(b"weights")
    assert sidecar.read(folder) is None
    assert next(model for model in known_models(tmp_path) if model.name == name).pulled
