"""Launching kernels at little cost."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Launcher:
    """Triton looks at every argument of every call to find the compiled variant, which takes longer than a small kernel
    runs. Here the dtype and the constants name it, so all other integers must be exempt from specialisation, and
    pointers that are not must be aligned to 16 bytes, as whatever torch allocates is."""

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
        """`arguments` and `constants` are the kernel's parameters in order, constants last; `options` are fixed."""
        compiled = self._compiled.get((dtype, constants))
        if compiled is not None:
            compiled[grid](*arguments, *constants)
        elif (compiled := self._kernel[grid](*arguments, *constants, **options)) is not None:
            self._compiled[dtype, constants] = compiled  # None: see `ahead`
