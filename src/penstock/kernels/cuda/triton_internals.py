"""All that Penstock uses of Triton beyond its documented API: launching below its layers, its asynchronous compilation,
its cache and its key. Tried with Triton 3.6 and 3.8.

Importing this module imports neither Triton nor torch.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from penstock.system.slow_paths import warn_slow_path

Grid = tuple[int, int, int]
Launch = Callable[[Grid, tuple[Any, ...], tuple[Any, ...]], None]


def architecture() -> int:
    """Compute capability of the current device, as 90 for 9.0."""
    arch: int = importlib.import_module("triton.runtime.driver").driver.active.get_current_target().arch
    return arch


@cache
def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the host."""
    interpreted: bool = importlib.import_module("triton").knobs.runtime.interpret
    return interpreted


# --- launching


def direct_launch(compiled: Any) -> Launch:
    """A function of grid, arguments and constants that launches a compiled kernel: through the C function beneath
    Triton's layers, or through Triton's own launcher where that function is not called as expected."""
    try:
        layout = _learn_layout(compiled)
    except Exception:
        layout = None
    if layout is None:
        warn_slow_path("triton", "kernel launcher", "every launch takes microseconds longer")
        return lambda grid, arguments, constants: compiled[grid](*arguments, *constants)
    import torch

    from penstock.kernels.torch_internals import stream_functions

    launch, function, (fixed, in_a_tuple) = compiled.run.launch, compiled.function, layout
    current_device, raw_stream = stream_functions()
    tensor = torch.Tensor

    def direct(grid: Grid, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
        values = [value.data_ptr() if isinstance(value, tensor) else value for value in arguments]
        launch(*grid, raw_stream(current_device()), function, *fixed, *values, *constants)

    def direct_with_tuple(grid: Grid, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
        values = [value.data_ptr() if isinstance(value, tensor) else value for value in arguments]
        launch(*grid, raw_stream(current_device()), function, *fixed, (*values, *constants))

    return direct_with_tuple if in_a_tuple else direct


def _learn_layout(compiled: Any) -> tuple[tuple[Any, ...], bool] | None:
    """How Triton's launcher calls the C function: the values between the function handle and the kernel's arguments,
    and whether those arguments come as one tuple. Learnt by having the launcher call a recorder in its place."""
    launcher, calls = copy.copy(compiled.run), list[tuple[Any, ...]]()
    launcher.launch = lambda *values: calls.append(values)
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        return None  # memory that would have to be allocated for each launch
    grid, stream, arguments = (object(), object(), object()), object(), (object(), object())
    launcher(*grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments)
    begin = (*grid, stream, compiled.function)
    (values,) = calls
    if values[:5] != begin:
        return None
    rest = values[5:]
    in_a_tuple = rest[-1:] == (arguments,)
    fixed = rest[:-1] if in_a_tuple else rest[:-2]
    if not in_a_tuple and rest[-2:] != arguments:
        return None
    return (fixed, in_a_tuple) if not {*map(id, (*grid, stream, *arguments))} & {*map(id, fixed)} else None


# --- compiling ahead


@cache
def can_defer_compilation() -> bool:
    """Whether `deferring` works."""
    try:
        mode = importlib.import_module("triton.runtime._async_compile").active_mode
        compiles = importlib.import_module("triton.runtime.jit").JITFunction._do_compile
        known = isinstance(mode, ContextVar) and "active_mode" in inspect.unwrap(compiles).__code__.co_names
    except (ImportError, AttributeError):
        known = False
    if not known:
        warn_slow_path("triton", "asynchronous compilation", "kernels are compiled one by one as they are first used")
    return known


is_deferring: ContextVar[bool] = ContextVar("is_deferring", default=False)  # in this thread


@contextmanager
def deferring(mode: Any) -> Iterator[None]:
    """Inside the block Triton does not compile or launch new kernels: it calls `mode.submit(key, compile, finalize)`
    and launches what that returns, unless it is None."""
    active = importlib.import_module("triton.runtime._async_compile").active_mode
    token, own = active.set(mode), is_deferring.set(True)
    try:
        yield
    finally:
        is_deferring.reset(own)
        active.reset(token)


def is_cached(key: str) -> bool:
    """Whether Triton's cache on disk has the kernel. A cache that is not a folder counts as empty."""
    manager = importlib.import_module("triton.runtime.cache").get_cache_manager(key)
    folder = getattr(manager, "cache_dir", None)
    return folder is not None and any(Path(folder).glob("*.cubin"))


def build_launcher(compiled: Any) -> None:
    """Have Triton compile the C code that launches a kernel, for those of its versions that write some."""
    try:
        launcher = importlib.import_module("triton.backends.nvidia.driver").CudaLauncher
        launcher(compiled.src, compiled.metadata)
    except AttributeError:
        warn_slow_path("triton", "CudaLauncher", "the first launch of each kernel takes longer")


# --- starting


def load_driver() -> None:
    """What Triton does at its first launch: compile and load the C module that loads kernels."""
    importlib.import_module("triton.backends.nvidia.driver").CudaUtils()


def replace_key(key: str | None) -> None:
    """Have Triton name its cache entries by `key`, or compute its own key now: a hash over half a gigabyte of files."""
    cache_module: Any = importlib.import_module("triton.runtime.cache")
    if not callable(getattr(cache_module, "triton_key", None)):
        warn_slow_path("triton", "triton_key", "the first kernel waits for a hash over all of Triton's files")
        return
    if key is not None:
        cache_module.triton_key = lambda: key
    cache_module.triton_key()
