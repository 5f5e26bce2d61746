"""Measures what steps cost by their rows, for speculation: once per model and machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.flow import Admit, Backend, Row, SamplingParams, StepPlan
from penstock.flow.step_costs import StepCosts
from penstock.store.disk import cache_root

logger = logging.getLogger(__name__)

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
REPETITIONS = 5
ENOUGH_S = 1.0  # after this time every size is measured once more at most
GOOD_FOR_S = 7 * 24 * 3600.0  # a measurement of a busy machine is not kept for ever
FOLDER = "step_costs"


def step_costs(
    backend: Backend,
    what: tuple[object, ...],
    *,
    max_rows: int,
    num_groups: int,
    sizes: Sequence[int] = ROWS,
    draft_s: float = 0.0,
) -> StepCosts:
    """Of steps with up to `max_rows` rows. `what` names all that they depend on: model, kernels, their build, threads.
    `draft_s` as in `StepCosts`."""
    sizes = [rows for rows in sizes if rows <= max(2, max_rows)]
    name = hashlib.blake2b(repr((what, sizes, os.cpu_count())).encode(), digest_size=12).hexdigest()
    file = cache_root() / FOLDER / f"{name}.json"
    found = _read(file)
    if found is None:
        found = measure(backend, sizes, max_rows=max_rows, num_groups=num_groups)
        _write(file, found)
    return StepCosts(found, draft_s)


def measure(backend: Backend, sizes: Sequence[int], *, max_rows: int, num_groups: int) -> dict[int, float]:
    """Seconds by rows, the best of several. The steps write to block 0, which belongs to no sequence."""
    admits = [
        Admit(slot, [0, 0], 1, SamplingParams(temperature=0.0), 0, 0, (), [[0] for _ in range(num_groups)])
        for slot in range(min(sizes[-1], max_rows))
    ]
    seconds = dict.fromkeys(sizes, float("inf"))
    begun = time.perf_counter()
    for repetition in range(1 + REPETITIONS):
        if repetition > 1 and time.perf_counter() - begun > ENOUGH_S:
            break
        for rows in sizes:
            plan = StepPlan(0, admits if not repetition else [], [], [Row(slot, 1, 1, 1) for slot in range(rows)])
            start = time.perf_counter()
            backend.launch(plan)
            backend.collect()
            if repetition:  # the first touches memory
                seconds[rows] = min(seconds[rows], time.perf_counter() - start)
    logger.debug("steps by rows take %s", {rows: round(value, 5) for rows, value in seconds.items()})
    return seconds


def _read(file: Path) -> dict[int, float] | None:
    try:
        if time.time() - file.stat().st_mtime > GOOD_FOR_S:
            return None
        found = {int(rows): float(seconds) for rows, seconds in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return found if len(found) > 1 and all(seconds > 0 for seconds in found.values()) else None


def _write(file: Path, seconds: dict[int, float]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(seconds))
        temporary.replace(file)
    except OSError as error:
        logger.debug("the costs of steps are not kept: %s", error)
