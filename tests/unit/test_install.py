"""What is shown of pip while it installs."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SAID = """\
Looking in indexes: https://index.example/simple
WARNING: Location 'x' is ignored
Collecting torch
  Downloading torch-2.9.1-cp312-none-any.whl.metadata (30 kB)
  Downloading https://index.example/simple/torch-2.9.1-cp312-none-any.whl (899.8 MB)
Progress 0 of 899800000
Progress 449900000 of 899800000
Collecting click
  Downloading click-8.5.1-py3-none-any.whl (108 kB)
Building wheels for collected packages: penstock
  Building editable for penstock (pyproject.toml): started
Installing collected packages: torch, click, penstock
Successfully installed click-8.5.1 penstock-0.1.0 torch-2.9.1
""".splitlines(keepends=True)


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_terminal_what_takes_long_is_a_line(install: ModuleType) -> None:
    said: list[str] = []
    kept = install.follow(SAID, said.append, terminal=False)
    assert [line.partition(" s  ")[2] for line in said] == [
        "downloading torch (899.8 MB)\n",
        "building penstock: native kernels and web interface\n",
        "installing 3 packages\n",
        "done with pip\n",
    ]
    assert "".join(kept) == "".join(line for line in SAID if not line.startswith("Progress"))


def test_a_download_says_how_far_it_is(install: ModuleType) -> None:
    status = install.Status()
    seen = [(status.read(line), str(status)) for line in SAID]
    assert (False, "downloading torch (899.8 MB), 50%") in seen
    assert (True, "downloading click (108 kB)") in seen


def test_on_a_terminal_it_is_one_line(install: ModuleType) -> None:
    said: list[str] = []
    install.follow(SAID, said.append, terminal=True)
    *rewritten, last = said
    assert all(text.startswith("\r") and "\n" not in text for text in rewritten)
    assert last.endswith("done with pip\n")


def test_torch_is_installed_where_there_is_a_gpu(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "has_gpu", lambda: True)
    requirement, note = install.choose_extra("server")
    assert requirement == ".[torch]"
    assert "NVIDIA GPU" in note
    monkeypatch.setattr(install, "has_gpu", lambda: False)
    requirement, note = install.choose_extra("server")
    assert requirement == "."
    assert "without torch" in note
    assert install.choose_extra("dev")[0] == ".[dev]"


def test_a_server_on_a_cpu_depends_on_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=;\[ ]", one)[0] for one in project["dependencies"]}
    assert names & {"torch", "triton", "transformers"} == set()
    assert any(one.startswith("torch>=") for one in project["optional-dependencies"]["torch"])
    assert "penstock[docs,otel,postgres,ray,torch]" in project["optional-dependencies"]["dev"]  # tests need everything
