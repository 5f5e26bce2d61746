"""Launching kernels at little cost, each while the one before still runs.

From compute capability 9.0 on, a kernel may be launched before its predecessor has ended (programmatic dependent
launch): its programs come up, and may fetch what nobody writes, but read what the predecessor makes only after `wait`.
A predecessor that has itself waited is done only when all before it are, so nothing else needs to be said about order.
For that, every program of every kernel must wait, before it writes or ends.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.driver import driver


@cache
def overlaps() -> bool:
    arch: int = driver.active.get_current_target().arch
    return arch >= 90


@triton.jit
def let_next_begin(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_wait()


@triton.jit
def fetch(pointers, OVERLAP: tl.constexpr):
    """Bring the lines of 128 bytes that `pointers` lie in to the L2 cache. Reads nothing, so it needs not wait."""
    if OVERLAP:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
        )


class Launcher:
    """Triton looks at every argument of every call to find the compiled variant, which takes longer than a small kernel
    runs. Here the dtype, the constants and the options name it, so all other integers must be exempt from
    specialisation, and pointers that are not must be aligned to 16 bytes, as whatever torch allocates is."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[Hashable, Any] = {}

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
        compiled = self._compiled.get(key)
        if compiled is not None:
            compiled[grid](*arguments, *constants, overlap)
            return
        compiled = self._kernel[grid](*arguments, *constants, overlap, launch_pdl=overlap, **options)
        if compiled is not None:  # else see `ahead`
            self._compiled[key] = compiled
