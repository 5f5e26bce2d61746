"""The machine's limits, measured by bench/cpu.py between its rows: see cpu_child.py. They vary: on a virtual machine
two cores read 34 GB/s at times and 63 at others, for seconds or minutes."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import cpu_child
from cpu_child import timed
from penstock.kernels.cpu.arena import Arena

TIMES = 4  # best of


class Machine:
    def __init__(self, _: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        memory = Arena().empty(1 << 28, dtype="float32")  # 1 GiB in huge pages, as weights are
        self._memory = torch.from_numpy(memory).fill_(1.0)
        self._left = torch.randint(0, 127, (1024, 4096), dtype=torch.uint8)
        self._layer = _int8_linear(torch.randint(-127, 127, (4096, 4096), dtype=torch.int8))

    def read_gbps(self) -> float:
        return self._memory.nbytes / min(timed(self._memory.sum) for _ in range(TIMES)) / 1e9

    def int8_gops(self) -> float:
        """int8 products of torch (oneDNN)."""
        seconds = min(timed(lambda: self._layer(self._left)) for _ in range(TIMES))
        return 2 * 1024 * 4096 * 4096 / seconds / 1e9


def _int8_linear(weight: Tensor) -> Callable[[Tensor], Tensor]:
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    scales, zeros = torch.ones(weight.shape[0]), torch.zeros(weight.shape[0], dtype=torch.int32)

    def run(x: Tensor) -> Tensor:
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return product

    return run


if __name__ == "__main__":
    cpu_child.serve(Machine)
