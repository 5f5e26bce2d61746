"""When the web interface is built, and that an install goes on where it cannot be."""

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def build_ui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, on a made-up interface that has not been built yet."""
    spec = importlib.util.spec_from_file_location("build_ui", ROOT / "build_ui.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SOURCE", tmp_path / "ui")
    monkeypatch.setattr(module, "BUILT", tmp_path / "dist")
    for name in ("package.json", "src/main.tsx", "public/icon.svg"):
        file = tmp_path / "ui" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    return module


def npm(folder: Path, script: str) -> list[str]:
    """Something that is called like npm."""
    file = folder / "npm"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return [str(file)]


def test_it_is_stale_until_it_is_newer_than_every_source(build_ui: ModuleType) -> None:
    assert build_ui.stale()
    build_ui.BUILT.mkdir()
    page = build_ui.BUILT / "index.html"
    page.write_text("")
    assert not build_ui.stale()
    os.utime(build_ui.SOURCE / "src" / "main.tsx", (page.stat().st_mtime + 5,) * 2)
    assert build_ui.stale()
    (build_ui.SOURCE / "package.json").unlink()  # as in a source distribution, which has the built files alone
    assert not build_ui.stale()
    assert build_ui.requirements() == []


def test_node_comes_from_the_index_where_there_is_none(build_ui: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_ui, "_on_path", lambda: None)
    assert build_ui.requirements() == [build_ui.WHEEL]
    monkeypatch.setattr(build_ui, "_in_wheel", lambda: None)
    assert "no Node.js 20.19" in build_ui.build()


@pytest.mark.parametrize(
    ("version", "fits"),
    [((18, 20), False), ((20, 18), False), ((20, 19), True), ((21, 9), False), ((22, 11), False), ((24, 0), True)],
)
def test_which_node_is_recent_enough(build_ui: ModuleType, version: tuple[int, int], fits: bool) -> None:
    assert build_ui.recent_enough(*version) is fits


def test_a_failure_is_told_and_not_raised(
    build_ui: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_ui, "_on_path", lambda: npm(tmp_path, "echo no registry >&2; exit 1"))
    assert "no registry" in build_ui.build()
    monkeypatch.setattr(build_ui, "_on_path", lambda: [str(tmp_path / "gone")])
    assert "gone" in build_ui.build()


def test_npm_installs_what_is_locked_and_builds(
    build_ui: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_ui.BUILT.mkdir()
    monkeypatch.setattr(build_ui, "_on_path", lambda: npm(tmp_path, f'echo "$1" >> {tmp_path}/called'))
    assert build_ui.build() is None
    assert (tmp_path / "called").read_text().split() == ["ci", "run"]
    assert build_ui.build() is None  # nothing has changed: not again
    assert (tmp_path / "called").read_text().split() == ["ci", "run"]


def test_the_lock_names_no_registry() -> None:
    locked = json.loads((ROOT / "ui" / "package-lock.json").read_text())["packages"]
    assert not [name for name, entry in locked.items() if "resolved" in entry]
    assert all("integrity" in entry for name, entry in locked.items() if name)
