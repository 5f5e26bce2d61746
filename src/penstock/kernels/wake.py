"""What a start on a GPU waits for, begun while Python is busy with imports: threads do it, and need the interpreter for
little of it."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import threading

logger = logging.getLogger(__name__)

_threads: list[threading.Thread] = []


def wake_device() -> None:
    """Have the driver and Triton set up what every user of the first device shares; without a device, nothing."""
    if _threads or importlib.util.find_spec("triton") is None:  # with it comes a torch that can use a GPU
        return
    for work in (_retain, _prepare):
        _threads.append(threading.Thread(target=work, name="wake", daemon=True))
        _threads[-1].start()


def wait_awake() -> None:
    """Until what `wake_device` began is done, if it was called."""
    for thread in _threads:
        thread.join()


def _retain() -> None:
    """The driver's context, the better part of a second."""
    if (driver := _driver()) is None:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)  # for as long as the process lives


def _prepare() -> None:
    """What Triton wants at the first launch, and keeps: a hash over all of itself, half a gigabyte, and what loads
    kernels, which is C to be compiled."""
    if _driver() is None:
        return
    try:
        from triton.backends.nvidia.driver import CudaUtils
        from triton.runtime.cache import triton_key

        triton_key()
        CudaUtils()
    except Exception as error:  # whatever it is, the first launch will meet it again
        logger.debug("Triton could not be prepared: %s", error)


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
