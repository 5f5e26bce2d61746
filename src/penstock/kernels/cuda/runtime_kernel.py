"""Kernels in CUDA C++, compiled when they are first needed by NVRTC, which every CUDA build of torch brings along.

For what Triton has no words for: which lane of a warp has which bytes. A kernel is a file beside its module; constants
are macros, so a variant is compiled for each set of them, in a fifth of a second, and kept in the cache folder. It is
launched as those of Triton are, while the launch before it still runs (`launch`), with one struct as its argument.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

from penstock.kernels.cuda import triton_internals
from penstock.store.disk import cache_root

logger = logging.getLogger(__name__)

FOLDER = "cuda_kernels"
COMPILERS = 4  # threads
Grid = tuple[int, int, int]

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_…


class RuntimeKernelFailed(Exception):
    """NVRTC or the driver refused it. Says what they said."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("_", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


class RuntimeKernel:
    """One kernel of a source file, in as many variants as its constants have values."""

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name
        self._variants: dict[tuple[int, ...], Variant] = {}

    def variant(self, names: tuple[str, ...], values: tuple[int, ...]) -> Variant:
        found = self._variants.get(values)
        if found is None:
            constants = dict(zip(names, values, strict=True))
            found = self._variants[values] = Variant(self._file, self._name, constants)
        return found


class Variant:
    """Compiled in the background from its first mention on."""

    def __init__(self, file: Path, name: str, constants: Mapping[str, int]) -> None:
        self._name = name
        self._image: Future[bytes] = _pool().submit(_image, file.read_text(), file.name, constants)
        self._function: ctypes.c_void_p | None = None
        self._most_shared = 0

    def __call__(self, grid: Grid, threads: int, shared: int, arguments: bytes) -> None:
        """`shared`: bytes of dynamic shared memory. `arguments`: the kernel's struct."""
        if triton_internals.is_deferring.get():  # what it would read may not have been computed
            return
        function = self._function or self._load()
        driver = _driver()
        if shared > self._most_shared:
            _check(driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared), "shared memory")
            self._most_shared = shared
        struct = ctypes.create_string_buffer(arguments, len(arguments))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(struct))
        attribute = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
        config = _Config(
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(threads, 1, 1),
            shared,
            _current_stream()(),
            ctypes.pointer(attribute),
            1,
        )
        _check(driver.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None), "launch")

    def _load(self) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        driver = _driver()
        _check(driver.cuModuleLoadData(ctypes.byref(module), self._image.result()), "module")
        _check(driver.cuModuleGetFunction(ctypes.byref(function), module, self._name.encode()), "function")
        self._function = function
        return function


@cache
def is_available() -> bool:
    """Whether this device can run such kernels: compute capability 9.0 or more, with NVRTC."""
    if triton_internals.is_interpreted() or triton_internals.architecture() < 90:
        return False
    if _nvrtc() is None:
        logger.warning("NVRTC was not found: products with coded weights take Triton's kernels, which are slower")
        return False
    return True


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COMPILERS, thread_name_prefix="nvrtc")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _nvrtc() -> ctypes.CDLL | None:
    """Where torch's packages have it, or the system."""
    importlib.import_module("torch")  # loads it, perhaps
    version = str(importlib.import_module("torch").version.cuda).partition(".")[0]
    name = f"libnvrtc.so.{version}"
    folders = [Path(entry) / "nvidia" for entry in sys.path if entry]
    beside = [file for folder in folders for file in folder.glob(f"*/lib/{name}")]
    for candidate in (name, *map(str, beside), f"/usr/local/cuda/lib64/{name}"):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    return None


@cache
def _current_stream() -> Callable[[], int]:
    from penstock.kernels.torch_internals import stream_functions

    current_device, raw_stream = stream_functions()
    return lambda: raw_stream(current_device())


def _check(code: int, what: str) -> None:
    if code:
        raise RuntimeKernelFailed(f"the CUDA driver refused a kernel ({what}: error {code})")


def _image(source: str, name: str, constants: Mapping[str, int]) -> bytes:
    """Machine code, from the cache folder if it is there."""
    options = [f"--gpu-architecture=sm_{triton_internals.architecture()}", "--std=c++17", "--device-as-default-execution-space"]
    options += [f"-D{constant}={value}" for constant, value in constants.items()]
    nvrtc = _nvrtc()
    assert nvrtc is not None
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    what = repr((source, options, major.value, minor.value))
    file = cache_root() / FOLDER / f"{hashlib.blake2b(what.encode(), digest_size=16).hexdigest()}.cubin"
    try:
        return file.read_bytes()
    except OSError:
        pass
    image = _compile(nvrtc, source, name, options)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_suffix(f".{os.getpid()}")
        made.write_bytes(image)
        made.replace(file)
    except OSError as error:
        logger.debug("a compiled kernel is not kept: %s", error)
    return image


def _compile(nvrtc: ctypes.CDLL, source: str, name: str, options: list[str]) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    try:
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), encoded):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeKernelFailed(f"{name} does not compile with {options}:\n{log.value.decode()}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, image)
        return image.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
