"""Launch Triton kernels with little host time, each while the one before still runs.

Programmatic dependent launch (PDL, compute capability 9.0): once all programs of a kernel have called `let_next_begin`
or ended, those of the next kernel start. They may read at once what no kernel of the layers writes (weights, positions,
lengths, tables), but what the previous kernel writes only after `wait`, which returns when it has ended. Every program
of every kernel launched here must wait before it writes or ends: then a kernel that has ended has waited for the one
before, and so for all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from penstock.kernels.cuda import triton_internals


def power_of_2(least: int) -> int:
    """The smallest power of 2 that is at least `least`. Triton has such a function, but it takes microseconds."""
    return 1 << max(least - 1, 0).bit_length()


@cache
def overlaps() -> bool:
    """Whether this GPU has programmatic dependent launch."""
    return triton_internals.architecture() >= 90


@triton.jit
def let_next_begin(OVERLAP: tl.constexpr):
    """Let the next kernel start, as far as this program is concerned."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait(OVERLAP: tl.constexpr):
    """Until the launch before this one has ended and what it wrote can be read."""
    if OVERLAP:
        gdc_wait()


class Launcher:
    """Finds the compiled variant by dtype, constants and options. Triton inspects every argument of every call, and
    asks the driver about every pointer, which takes longer than a small kernel runs. So all other integers must be
    exempt from specialisation, and pointers that are not must be aligned to 16 bytes, as torch's allocations are."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[Hashable, Callable[..., None]] = {}

    def __call__(
        self,
        grid: tuple[int, int, int],
        dtype: object,
        arguments: tuple[Any, ...],
        constants: tuple[Any, ...],
        **options: int,
    ) -> None:
        """`arguments` and `constants` are the kernel's parameters in order, constants last but for OVERLAP, which is
        filled in here."""
        key, overlap = (dtype, constants, *options.values()), overlaps()
        launch = self._compiled.get(key)
        if launch is not None:
            if not triton_internals.is_deferring.get():  # else what it reads may not have been computed, either
                launch(grid, arguments, (*constants, overlap))
            return
        compiled = self._kernel[grid](*arguments, *constants, overlap, launch_pdl=overlap, **options)
        if compiled is not None:  # else see `precompile`
            self._compiled[key] = triton_internals.direct_launch(compiled)
