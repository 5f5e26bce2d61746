"""What a start on a GPU waits for, begun while Python is busy with imports. A thread does it, and needs the interpreter
for little of it."""

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
    """Have the driver and Triton set up what every user of the first device shares; without a device, nothing."""
    global _waking
    if _waking is None and importlib.util.find_spec("triton") is not None:  # with it comes a torch that can use a GPU
        _waking = threading.Thread(target=_wake, name="wake", daemon=True)
        _waking.start()


def wait_awake() -> None:
    """Until what `wake_device` began is done, if it was called."""
    if _waking is not None:
        _waking.join()


def _wake() -> None:
    if _retain():
        try:
            _prepare()
        except Exception as error:  # whatever it is, the first launch will meet it again
            logger.debug("Triton could not be prepared: %s", error)


def _retain() -> bool:
    """The driver's context, for as long as the process lives: half a second. False if there is no device."""
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
    """Differs if any of its files does. Triton's own such key is a hash over half a gigabyte, which takes a second
    where the disk has to be read. This one takes the hashes that the package came with, if it did, and what can be seen
    of files without reading them."""
    from importlib import metadata  # takes long to import, and whoever only asks for a thread need not wait for it

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
