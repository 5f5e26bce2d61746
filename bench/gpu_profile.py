"""Where the time of decode steps goes on a GPU: host against device, and kernel by kernel.

    python bench/gpu_profile.py [--model 0.6b] [--rows 256] [--context 512] [--steps 64]

The host's share of a step is the time of the engine's loop minus waiting for the device; while it is below the step
time, the device never waits for the host. Kernels overlap (see kernels/cuda/launch.py), so a kernel's time starts at
the end of the previous one, if that is later than its own start.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from gpu import Bench, Variant
from gpu_targets import CONFIGS


@dataclass
class Steps:
    """Wraps a backend: records when each step was collected, and how long the host waited."""

    backend: Any
    ends: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def launch(self, plan: Any) -> None:
        self.backend.launch(plan)

    def collect(self) -> Any:
        start = time.perf_counter()
        result = self.backend.collect()
        self.ends.append(time.perf_counter())
        self.waits.append(self.ends[-1] - start)
        return result

    def told(self, last: int) -> tuple[float, float]:
        """Median milliseconds of the last steps, and of the host in them."""
        times = [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)][-last:]
        host = [whole - waited for whole, waited in zip(times, self.waits[-last:], strict=True)]
        return median(times) * 1e3, median(host) * 1e3


def kernels(bench: Bench, prompts: list[list[int]], steps: int) -> dict[str, tuple[int, float]]:
    """Launches and total microseconds of each kernel, in the second half of a run."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        bench.go(prompts, [steps] * len(prompts))
    events = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    end = 0.0
    for event in events[len(events) * 3 // 4 :]:
        span, name = event.time_range, event.name[:60]
        count, total = found[name]
        found[name] = count + 1, total + max(0.0, span.end - max(span.start, end))
        end = max(end, span.end)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(CONFIGS), default="0.6b")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIGS[arguments.model]))
        bench = Bench(folder, Variant(arguments.model))
    rows, steps = arguments.rows, arguments.steps
    bench.go(bench.prompts(rows, arguments.context), [4] * rows)
    loop = bench.llm._driver.engine.loop  # type: ignore[attr-defined]
    watched = loop.backend = Steps(loop.backend)
    bench.go(bench.prompts(rows, arguments.context), [steps] * rows)
    step, host = watched.told(steps // 2)
    loop.backend = watched.backend
    print(
        f"{arguments.model}, {rows} rows from context {arguments.context} on: {step:.2f} ms a step, the host {host:.2f}"
    )
    found = kernels(bench, bench.prompts(rows, arguments.context), steps)
    total = sum(spent for _, spent in found.values())
    for name, (count, spent) in sorted(found.items(), key=lambda item: -item[1][1])[:14]:
        print(f"{100 * spent / total:5.1f}%  {spent / count:8.2f} us  {count:6d} x  {name}")


if __name__ == "__main__":
    main()
