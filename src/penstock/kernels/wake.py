"""What a start on a GPU waits for, begun while Python is busy with imports. A thread does it, and needs the interpreter
for little of it."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
import threading

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
    """What Triton wants at the first launch, and keeps: a hash over all of itself, half a gigabyte, and what loads
    kernels, which is C to be compiled."""
    importlib.import_module("triton")  # before its parts, or another thread that imports it waits for us, and we for it
    from triton.backends.nvidia.driver import CudaUtils
    from triton.runtime.cache import triton_key

    triton_key()
    CudaUtils()
