"""Prepares the CUDA driver and Triton in a thread while Python imports torch; it rarely holds the interpreter lock."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import logging
import os
import threading
from pathlib import Path

from penstock.kernels.cuda import triton_internals

logger = logging.getLogger(__name__)

_waking: threading.Thread | None = None


def wake_device() -> None:
    """Start preparing the first device; does nothing without one."""
    global _waking
    if _waking is None and importlib.util.find_spec("triton") is not None:  # comes with CUDA builds of torch
        _waking = threading.Thread(target=_wake, name="wake", daemon=True)
        _waking.start()


def wait_awake() -> None:
    """Wait until the device is prepared, if `wake_device` was called."""
    if _waking is not None:
        _waking.join()


def _wake() -> None:
    if _retain():
        try:
            _prepare()
        except Exception as error:  # the first launch will meet it again
            logger.debug("Triton could not be prepared: %s", error)


def _retain() -> bool:
    """Create the driver's primary context, which takes half a second, and keep it. False if there is no device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return False
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    return True


def _prepare() -> None:
    """What Triton would do at the first launch: name itself by a key, and load its driver."""
    importlib.import_module("triton")  # whole, before its parts: another thread that imports it must not wait for us
    triton_internals.replace_key(_key("triton"))
    triton_internals.load_driver()


def _key(package: str) -> str | None:
    """A key that changes with any file of the package. Triton's own is a hash over half a gigabyte, a second of reading
    from disk. This one hashes the package's RECORD, and path, size and time of its files; None without a RECORD."""
    from importlib import metadata  # slow to import: here it runs in the thread

    spec = importlib.util.find_spec(package)
    try:
        record = metadata.distribution(package).read_text("RECORD")
    except metadata.PackageNotFoundError:
        record = None
    if record is None or spec is None or spec.origin is None:
        return None
    seen = [record]
    for folder, _, files in sorted(os.walk(Path(spec.origin).parent)):
        for path in (Path(folder, name) for name in sorted(files) if name.endswith((".py", ".so"))):
            state = path.stat()
            seen.append(f"{path} {state.st_size} {state.st_mtime_ns}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()
