"""Bytecode of the package and of the benchmarks, which an installed package has: without it a start takes 0.15 s more.
Where Python may not write it (PYTHONDONTWRITEBYTECODE), it would be missing at every start."""

import compileall
from pathlib import Path

import penstock


def compile_all() -> None:
    for folder in (Path(penstock.__file__).parent, Path(__file__).parent):
        compileall.compile_dir(folder, quiet=2)
