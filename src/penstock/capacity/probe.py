"""What this machine is, by a look at its GPU's name or by a short measurement of its CPU."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from penstock.capacity.device import GB, PRESETS, Device
from penstock.errors import InvalidRequest

VECTOR = 1 << 24  # numbers of 4 bytes: two of these are beyond any cache
SMALL, LARGE = 64, 512  # of matrices: BLAS gives the small one to one thread, the large one to all
TRY_S = 0.1
ROUNDS = 20


def this_machine(kind: Literal["cpu", "cuda"] | None = None) -> Device:
    """The GPU where there is one, unless `kind` is cpu."""
    gpu = None if kind == "cpu" else _nvidia_smi()
    if gpu is not None:
        return match_gpu(*gpu)
    if kind == "cuda":
        raise InvalidRequest("hardware: nvidia-smi does not tell what this GPU is; give its numbers", param="hardware")
    return _CPU.device()


def match_gpu(name: str, memory_bytes: float) -> Device:
    """The preset whose label has the words of the name that nvidia-smi gives, and the nearest memory."""
    words = set(re.findall(r"[a-z0-9]+", name.lower())) - {"nvidia", "geforce", "tesla"}
    models = {word for word in words if any(character.isdigit() for character in word)} - {_gigabytes(memory_bytes)}
    close = [
        device
        for device in PRESETS.values()
        if models & set(device.label.lower().split()) and abs(device.memory_bytes / memory_bytes - 1) < 0.15
    ]
    if not close:
        raise InvalidRequest(
            f"hardware: there is no preset of this machine's {name}; give its numbers", param="hardware"
        )
    shared = {device.name: len(words & set(device.label.lower().split())) for device in close}
    return max(close, key=lambda device: shared[device.name])


def _gigabytes(memory_bytes: float) -> str:
    return f"{memory_bytes / GB:.0f}gb"


def _nvidia_smi() -> tuple[str, float] | None:
    """Name and memory of the first GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        name, mebibytes = done.stdout.splitlines()[0].rsplit(",", 1)
        return name.strip(), float(mebibytes) * (1 << 20)
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None


class _Cpu:
    """A product of vectors is all reading, one of matrices all arithmetic.

    Other work beside it can only make a try slower, so the best of all tries counts: every question adds some, in up
    to ROUNDS. Where other work never ends, threads never get to run together, and one core times their number is nearer
    the truth than all of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds = 0
        self._bandwidth = self._flops = 0.0

    def device(self) -> Device:
        with self._lock:
            if self._rounds < ROUNDS:
                self._try()
        cores = _cores()
        return Device(
            name="this",
            label=f"this machine's CPU, {cores} cores, measured",
            kind="cpu",
            memory_bytes=float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
            bandwidth_bytes_s=self._bandwidth,
            flops=self._flops,
        )

    def _try(self) -> None:
        import numpy as np

        vector, other = np.ones(VECTOR, dtype=np.float32), np.ones(VECTOR, dtype=np.float32)
        small, large = (np.ones((size, size), dtype=np.float32) for size in (SMALL, LARGE))
        self._bandwidth = max(self._bandwidth, 2 * VECTOR * 4 / _least_s(lambda: vector @ other))
        one = 2 * SMALL**3 / _least_s(lambda: small @ small)
        self._flops = max(self._flops, one * _cores(), 2 * LARGE**3 / _least_s(lambda: large @ large))
        self._rounds += 1


_CPU = _Cpu()


def _cores() -> int:
    """That this process may use; two threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    siblings = Path("/sys/devices/system/cpu")
    found = set()
    for cpu in os.sched_getaffinity(0):
        try:
            found.add((siblings / f"cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            found.add(str(cpu))
    return len(found)


def _least_s(work: Callable[[], object]) -> float:
    least, until = math.inf, time.perf_counter() + TRY_S
    while (started := time.perf_counter()) < until or least is math.inf:
        work()
        least = min(least, time.perf_counter() - started)
    return least
