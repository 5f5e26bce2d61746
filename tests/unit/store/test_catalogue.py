from __future__ import annotations

from pathlib import Path

import pytest

from helpers.store_samples import write_gguf
from penstock.errors import ModelNotFound, PullFailed
from penstock.model.registry import ARCHITECTURES
from penstock.store import hub
from penstock.store.catalogue import CATALOGUE, DEFAULT, find_entry
from penstock.store.gguf import TENSOR_TYPES
from penstock.store.gguf_spec import ARCHITECTURES as GGUF_ARCHITECTURES
from penstock.store.hub_catalogue import ALIASES
from penstock.store.listing import known_models
from penstock.store.progress import Progress
from penstock.store.resolve import check_name, resolve

NAME = "llama3.2:1b"
ASKED_FOR = (NAME, "qwen3:0.6b", "gemma3:1b", "smollm2:1.7b", "phi4-mini", "mistral:7b", "qwen2.5-coder:1.5b")


def test_entries_are_consistent() -> None:
    assert DEFAULT in CATALOGUE
    assert len(CATALOGUE) >= 25
    assert len({entry.key for entry in CATALOGUE.values()}) == len(CATALOGUE)
    for name, entry in CATALOGUE.items():
        assert bool(entry.parts) != bool(entry.repository), name  # one source
        assert all(part.version for part in entry.parts)  # or its sha256 could change
        assert entry.verified == (entry.sha256 is not None)
        assert entry.verified == (entry.size_bytes is not None)
        assert (entry.size_bytes or entry.about_bytes or 0) > 10**7
        assert entry.filename.endswith(".gguf")
        assert "{" not in entry.filename
        assert entry.license
        assert entry.description
        assert len(bytes.fromhex(entry.sha256 or "0" * 64)) == 32


def test_only_what_the_engine_runs() -> None:
    """Architectures and block types that a GGUF may have here."""
    assert {entry.architecture for entry in CATALOGUE.values()} <= set(GGUF_ARCHITECTURES) & set(ARCHITECTURES)
    kinds = {kind.name for kind in TENSOR_TYPES.values()}
    for entry in CATALOGUE.values():
        for quantization in entry.quantizations or (entry.quantization or "",):
            assert quantization.removesuffix("_M") in kinds


@pytest.mark.parametrize("name", [*ASKED_FOR, *ALIASES, *CATALOGUE])
def test_every_name_leads_to_an_entry(name: str) -> None:
    assert find_entry(name) is not None
    assert find_entry(f"{name}:latest") == find_entry(name)
    check_name(name)
    assert ALIASES.get(name, name) in CATALOGUE
    assert name not in ALIASES or name not in CATALOGUE


def test_a_quantization_may_be_named() -> None:
    default, other = find_entry(NAME), find_entry(f"{NAME}-q8_0")
    assert default is not None
    assert find_entry(f"{NAME}-Q4_K_M") == default
    assert other is not None
    assert other.filename == "Llama-3.2-1B-Instruct-Q8_0.gguf"
    assert (other.name, other.key) == (f"{NAME}-q8_0", other.key)
    assert other.key != default.key
    assert find_entry(f"{NAME}-q2_k") is None


class Hub:
    """Has one GGUF file."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self.folder, self.error = folder, error
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self, hub_id: str, patterns: tuple[str, ...], progress: Progress, *, offline: bool) -> Path:
        self.asked.append((hub_id, patterns))
        if self.error is not None:
            raise self.error
        progress(hub_id, 1, 2)
        return self.folder


def test_one_file_of_the_hub_is_fetched_and_found_again(tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    path = write_gguf(tmp_path / "snapshot" / "Llama-3.2-1B-Instruct-Q4_K_M.gguf")
    fetch, seen = Hub(tmp_path / "snapshot"), []
    cache = tmp_path / "cache"
    files = resolve(NAME, cache=cache, fetch=fetch, progress=lambda *event: seen.append(event))
    assert fetch.asked == [("bartowski/Llama-3.2-1B-Instruct-GGUF", (path.name,))]
    assert (files.name, files.license, files.weights) == (NAME, "Llama-3.2", (path,))
    assert files.sampling["top_p"] == 0.9
    assert seen == [(NAME, 1, 2)]
    assert resolve("llama3.2:1b-q4_k_m", cache=cache, fetch=fetch, offline=True) == files
    assert len(fetch.asked) == 1
    known = {model.name: model for model in known_models(cache)}[NAME]
    assert known.pulled
    assert known.disk_bytes > path.stat().st_size
    assert not known.verified


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"Llama-3.2-1B-Instruct-Q4_K_M.gguf \(about 0.81 GB\)"):
        resolve(NAME, cache=tmp_path, offline=True)
    fetch = Hub(tmp_path, hub.HubUnreachable("gone"))
    with pytest.raises(PullFailed, match=r"bartowski/Llama-3.2-1B-Instruct-GGUF: the hub cannot be reached"):
        resolve(NAME, cache=tmp_path, fetch=fetch)
    with pytest.raises(PullFailed, match=r"has no file Llama-3.2-1B-Instruct-Q4_K_M.gguf"):
        resolve(NAME, cache=tmp_path, fetch=Hub(tmp_path))
