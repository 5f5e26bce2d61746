"""Where adapters come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.adapter_samples import convert_adapter, write_adapter
from helpers.model_specs import small_spec
from helpers.store_samples import pip_environment, write_wheel
from penstock.errors import ModelNotFound, PullFailed
from penstock.store.adapter import open_adapter
from penstock.store.adapter_source import resolve_adapter
from penstock.store.progress import Progress

SPEC = small_spec()


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", SPEC)
    assert resolve_adapter(str(folder), cache=tmp_path / "cache") == folder
    with pytest.raises(ModelNotFound, match="no adapter") as error:
        resolve_adapter(str(tmp_path / "absent"), cache=tmp_path / "cache")
    assert error.value.param == "adapter"
    with pytest.raises(ModelNotFound, match="no adapter"):
        resolve_adapter(str(folder), cache=tmp_path / "cache", paths=False)


def test_a_hub_id_is_fetched_once(tmp_path: Path) -> None:
    folder, fetched = write_adapter(tmp_path / "snapshot", SPEC), []

    def fetch(hub_id: str, patterns: tuple[str, ...], progress: Progress, *, offline: bool) -> Path:
        fetched.append((hub_id, patterns))
        return folder

    for _ in range(2):
        assert resolve_adapter("org/style", cache=tmp_path / "cache", fetch=fetch) == folder
    assert fetched == [("org/style", ("adapter_config.json", "adapter_model.safetensors"))]
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="has no adapter_model"):
        resolve_adapter("org/style", cache=tmp_path / "cache", fetch=fetch)


def test_files_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_adapter(tmp_path / "a", SPEC)
    gguf = convert_adapter(folder, tmp_path / "a.gguf", SPEC)
    files = {f"pkg/style/{path.name}": path.read_bytes() for path in folder.iterdir()}
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "my-lora", "1.0", {**files, "pkg/style.gguf": gguf.read_bytes()})
    for name, value in pip_environment(wheels).items():
        monkeypatch.setenv(name, value)
    cache = tmp_path / "cache"
    with pytest.raises(ModelNotFound, match="offline it cannot be fetched"):
        resolve_adapter("pypi:my-lora/pkg/style", cache=cache, offline=True)
    found = resolve_adapter("pypi:my-lora/pkg/style", cache=cache)
    assert open_adapter(found).spec.version == open_adapter(folder).spec.version
    assert resolve_adapter("pypi:my-lora/pkg/style", cache=cache, offline=True) == found
    assert open_adapter(resolve_adapter("pypi:my-lora/pkg/style.gguf", cache=cache)).spec.format == "gguf"
    with pytest.raises((ModelNotFound, PullFailed), match="has no file pkg/none"):
        resolve_adapter("pypi:my-lora/pkg/none", cache=cache)
    assert not any((cache / "partial").iterdir())
