"""Installs the package with pip and shows how far it is; the Makefile calls it.

    python install.py server     what a server needs: torch too, if this machine has an NVIDIA GPU
    python install.py dev        everything, for tests and development

On a terminal that is one line, rewritten; elsewhere a line for each large download and each phase. What pip itself says
is kept back, and shown if it fails.
"""

from __future__ import annotations

import compileall
import ctypes
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LARGE_BYTES = 5_000_000  # a download of its own line, where there is no terminal
BEAT_S = 15.0  # and a line at least so often
UNITS = {"kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000, "bytes": 1}
WIDTH = 78
SOURCE = Path(__file__).parent / "src"

DOWNLOAD = re.compile(r"\s+Downloading (\S+?)(?:\.metadata)? \(([\d.]+) (bytes|kB|MB|GB)\)")
PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
PHASES = (
    (re.compile(r"\s*Preparing editable metadata .*started|\s*Installing build dependencies: started"), "preparing"),
    (re.compile(r"Installing collected packages: (.*)"), "installing {count} packages"),
    (re.compile(r"\s*Building editable for (\S+) .*started"), "building {name}: native kernels and web interface"),
)


def choose_extra(purpose: str) -> tuple[str, str]:
    """What to give to pip, and what to say about it."""
    if purpose == "dev":
        return ".[dev]", "everything for tests and development, torch included; this takes some minutes"
    if has_gpu():
        return ".[torch]", "this machine has an NVIDIA GPU, so torch with CUDA comes too: some GB to download"
    return ".", "what a CPU server needs, without torch; penstock[torch] adds it for NVIDIA GPUs"


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU, or at least its driver."""
    if Path("/dev/nvidia0").exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


class Status:
    """What pip is doing, from what it prints."""

    def __init__(self) -> None:
        self.text = "looking for packages"
        self.share: float | None = None  # of the download
        self.large = True  # worth a line of its own

    def read(self, line: str) -> bool:
        """Whether something new has begun."""
        if match := PROGRESS.match(line):
            self.share = int(match[1]) / max(1, int(match[2]))
            return False
        if match := DOWNLOAD.match(line):
            name = match[1].rpartition("/")[2].split("-")[0]
            size = float(match[2]) * UNITS[match[3]]
            self._begin(f"downloading {name} ({match[2]} {match[3]})", large=size >= LARGE_BYTES)
            return True
        for pattern, text in PHASES:
            if match := pattern.match(line):
                found = match[1] if pattern.groups else ""
                self._begin(text.format(count=found.count(",") + 1, name=found), large=True)
                return True
        return False

    def _begin(self, text: str, *, large: bool) -> None:
        self.text, self.share, self.large = text, None, large

    def __str__(self) -> str:
        return self.text + ("" if self.share is None else f", {self.share:.0%}")


def follow(lines: Iterable[str], say: Callable[[str], None], *, terminal: bool) -> list[str]:
    """Say how it goes while `lines` come; gives all of them."""
    status, begun, over = Status(), time.monotonic(), threading.Event()
    kept: list[str] = []

    def seconds() -> str:
        return f"{time.monotonic() - begun:4.0f} s  "

    def tick() -> None:
        while not over.wait(0.2 if terminal else BEAT_S):
            text = (seconds() + str(status))[:WIDTH]
            say(f"\r{text:{WIDTH}}" if terminal else f"{text}\n")

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        for line in lines:
            if not PROGRESS.match(line):
                kept.append(line)
            if status.read(line) and status.large and not terminal:
                say(f"{seconds()}{status}\n")
    finally:
        over.set()
        ticking.join()
        say(("\r" + " " * WIDTH + "\r" if terminal else "") + f"{seconds()}done with pip\n")
    return kept


def main() -> int:
    def say(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    requirement, note = choose_extra(sys.argv[1])
    say(f"Installing into {Path(sys.prefix).name}, once: {note}.\n")
    # First pip itself: the one that came with Python may be too old to tell how far a download is.
    runs = (["--progress-bar", "off", "pip"], ["--progress-bar", "raw", "--editable", requirement])
    code = 0

    def lines() -> Iterator[str]:
        nonlocal code
        for arguments in runs:
            command = [sys.executable, "-m", "pip", "install", "--constraint", "constraints.txt", *arguments]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
                assert pip.stdout is not None
                yield from pip.stdout
            code = pip.returncode
            if code:
                return

    kept = follow(lines(), say, terminal=sys.stderr.isatty())
    if code:
        say("".join(kept))
    else:
        # As pip does for a package that it copies; Python may not be allowed to, and would compile at every start.
        compileall.compile_dir(SOURCE, quiet=2)
    return code


if __name__ == "__main__":
    sys.exit(main())
