"""Bytecode for packages that were installed without it.

Python compiles a module at its first import and stores the bytecode beside it, if it may. Many container images come
without bytecode and forbid writing it: every start then compiles a thousand modules of torch, which takes longer than
the rest of the import. Here several processes compile ahead of the import, into a folder of our own where Python may
not write beside the sources.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

from penstock.store.disk import cache_root
from penstock.system.extras import has_torch
from penstock.system.fork_pool import ForkPool
from penstock.system.resources import cores

LARGE = ("torch", "triton")  # packages that take long to compile
OWN = ("penstock",)  # a fifth of a second at every start
VARIABLES = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
PATIENCE_S = 60  # for all of it, which takes many processes a second or two


@contextmanager
def keep(packages: tuple[str, ...] | None = None) -> Iterator[None]:
    """Imports inside the block, and in processes started inside it, store their bytecode. Does nothing if these
    packages have their bytecode, or Python may write it where it belongs. Process-wide: see `process_tuning`.

    Our own folder takes the place of all others, so torch decides where it is installed: its bytecode must not be made
    a second time for the sake of ours."""
    roots = _without(packages or (LARGE if has_torch() else OWN))
    if not roots or (not sys.dont_write_bytecode and _writable(*roots)) or (folder := _folder(roots[0].parent)) is None:
        yield
        return
    before = sys.pycache_prefix, sys.dont_write_bytecode
    environment = {name: os.environ.get(name) for name in VARIABLES}
    sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False
    os.environ.update(zip(VARIABLES, (str(folder), ""), strict=True))
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def compiled_ahead(packages: tuple[str, ...] = LARGE) -> Iterator[None]:
    """Forked processes compile these packages, if they have no bytecode yet, while the block imports them. Modules near
    the root come first: they are most likely to be needed."""
    modules = [module for root in _without(packages) for module in _modules(root)]
    if not modules or sys.dont_write_bytecode:
        yield
        return
    modules.sort(key=lambda path: len(path.parts))
    pool = ForkPool([partial(_compile, module) for module in modules], cores() - 1, patience_s=PATIENCE_S)
    try:
        yield
    finally:
        pool.stop()


def _without(packages: tuple[str, ...]) -> list[Path]:
    """Folders of the packages that are not imported yet and have no bytecode where Python looks for it. Most modules of
    our own are imported later."""
    specs = [_find(package) for package in packages if package in OWN or package not in sys.modules]
    sources = [spec.origin for spec in specs if spec is not None and spec.has_location and spec.origin is not None]
    return [Path(one).parent for one in sources if not Path(importlib.util.cache_from_source(one)).exists()]


def _find(package: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(package)
    except ImportError:
        return None


def _folder(site: Path) -> Path | None:
    """Our folder for bytecode, or None: other users must not be able to write what we run. Each set of installed
    versions has its own: Python compares only time and size of a source, and some images give all files one time."""
    try:
        installed = "\n".join(sorted(path.name for path in site.glob("*.dist-info")))
        folder = cache_root() / "bytecode" / hashlib.sha256(installed.encode()).hexdigest()[:12]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError):  # not allowed; no home
        return None
    return folder if state.st_uid == os.geteuid() and not state.st_mode & 0o022 and _writable(folder) else None


def _writable(*folders: Path) -> bool:
    return all(os.access(folder, os.W_OK) for folder in folders)


def _modules(package: Path) -> Iterator[Path]:
    with os.scandir(package) as entries:
        inside = list(entries)
    for entry in inside:
        path = Path(entry.path)
        if path.suffix == ".py":
            yield path
        elif entry.is_dir() and (path / "__init__.py").exists():
            yield from _modules(path)


def _compile(module: Path) -> None:
    """Compile as an import would. Sources for other versions of Python fail, and are never imported."""
    with suppress(SyntaxError, ValueError):
        SourceFileLoader(module.stem, str(module)).get_code(module.stem)
