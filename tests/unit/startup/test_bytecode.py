"""Bytecode of packages that came without it: a package made for the test, imported by fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

PROGRAM = """
import os, subprocess, sys, time
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from penstock.startup import bytecode

bytecode.cores = lambda: 3
state = lambda: (sys.pycache_prefix, sys.dont_write_bytecode, dict(os.environ))
before = state()
with bytecode.keep(("large", "absent")), bytecode.compiled_ahead(("large", "absent")):
    large = import_module("large")
    print("own folder" if sys.pycache_prefix else "beside", large.VALUE)
    child = "import sys; print(sys.pycache_prefix, sys.dont_write_bytecode)"
    inherited = subprocess.check_output([sys.executable, "-c", child], text=True).split()
    assert inherited == [str(sys.pycache_prefix), str(sys.dont_write_bytecode)]
    unused = Path(cache_from_source(Path(large.__file__).with_name("unused.py")))
    while len(sys.argv) > 1 and not unused.exists():  # an import as short as this is over before others are
        time.sleep(0.01)
assert state() == before
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """In a folder that can be imported from. `large.unused` is not imported by anybody."""
    inner = tmp_path / "site" / "large" / "deep"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("from large.deep import VALUE\n")
    (inner.parent / "unused.py").write_text("1 / 0\n")
    (inner.parent / "broken.py").write_text("def\n")
    (inner / "__init__.py").write_text("VALUE = 5\n")
    return inner.parent


def run(package: Path, *, ahead: bool = False, **environment: str) -> str:
    """`ahead`: all must be compiled ahead, or it does not end."""
    source = Path(penstock.__file__).parents[1]
    paths = os.pathsep.join((str(package.parent), str(source)))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PENSTOCK_", "XDG_"))}
    clean |= {"PYTHONPATH": paths, "HOME": str(package.parents[1] / "home")} | environment
    command = [sys.executable, "-c", PROGRAM, *["wait"] * ahead]
    ran = subprocess.run(command, env=clean, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stderr == ""  # that a module cannot be compiled is nothing to be told: nobody imports it
    return ran.stdout.strip()


def compiled(folder: Path) -> set[str]:
    return {path.name.split(".")[0] for path in folder.rglob("*.pyc") if "large" in path.parts}


def test_where_python_may_write_it_is_written_ahead(package: Path) -> None:
    assert run(package, ahead=True) == "beside 5"
    assert compiled(package) == {"__init__", "unused"}


def test_where_python_may_not_write_it_is_kept_elsewhere(package: Path) -> None:
    home = package.parents[1] / "home"
    assert run(package, ahead=True, PYTHONDONTWRITEBYTECODE="1") == "own folder 5"
    assert compiled(package) == set()
    assert compiled(home / ".cache" / "penstock" / "bytecode") == {"__init__", "unused"}
    (folder,) = (home / ".cache" / "penstock" / "bytecode").iterdir()
    assert folder.stat().st_mode & 0o077 == 0


def test_what_is_kept_is_used_the_next_time(package: Path) -> None:
    caches = package.parents[1] / "caches"
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PENSTOCK_CACHE": str(caches)}
    run(package, **environment)
    (kept,) = (path for path in caches.rglob("*.pyc") if "deep" in path.parts)
    bytecode = kept.read_bytes()
    kept.write_bytes(bytecode[:16] + bytecode[16:].replace(b"\xe9\x05", b"\xe9\x07"))  # 5, as marshal writes it
    assert run(package, **environment) == "own folder 7"


def test_a_source_that_was_changed_is_compiled_again(package: Path) -> None:
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    run(package, **environment)
    (package / "deep" / "__init__.py").write_text("VALUE = 6666\n")
    assert run(package, **environment) == "own folder 6666"


def test_with_bytecode_of_its_own_nothing_is_changed(package: Path) -> None:
    run(package)
    assert run(package, PYTHONDONTWRITEBYTECODE="1") == "beside 5"
    assert not (package.parents[1] / "home").exists()


def test_without_a_place_for_it_an_import_goes_on(package: Path) -> None:
    assert run(package, PYTHONDONTWRITEBYTECODE="1", PENSTOCK_CACHE="/proc") == "beside 5"
    assert compiled(package) == set()


def test_a_folder_that_others_may_write_to_is_not_used(package: Path) -> None:
    caches = package.parents[1] / "caches"
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PENSTOCK_CACHE": str(caches)}
    assert run(package, **environment) == "own folder 5"
    (folder,) = (caches / "bytecode").iterdir()
    folder.chmod(0o777)
    assert run(package, **environment) == "beside 5"


def test_other_versions_have_another_folder(package: Path) -> None:
    """Even if all files have one time and one size, which is all that Python looks at."""
    source = package / "deep" / "__init__.py"
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    os.utime(source, (1, 1))
    assert run(package, **environment) == "own folder 5"
    source.write_text("VALUE = 6\n")
    os.utime(source, (1, 1))
    (package.parent / "large-2.0.dist-info").mkdir()
    assert run(package, **environment) == "own folder 6"


@pytest.mark.parametrize("torch", [False, True])
def test_without_torch_our_own_is_kept(tmp_path: Path, torch: bool) -> None:
    program = f"""
import sys
from penstock.startup import bytecode
bytecode.has_torch = lambda: {torch}
bytecode.LARGE = ("absent",)
with bytecode.keep():
    import penstock.stream.stops
"""
    environment = {
        "PYTHONPATH": str(Path(penstock.__file__).parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPYCACHEPREFIX": str(tmp_path / "none"),
        "PENSTOCK_CACHE": str(tmp_path / "caches"),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    assert len([*tmp_path.rglob("stops.*.pyc")]) == (not torch)
