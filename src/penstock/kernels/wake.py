"""Waking the GPU while Python is busy with imports."""

from __future__ import annotations

import ctypes
import importlib.util
import threading


def wake_device() -> None:
    """Have the driver set up what every user of the first device shares, in a thread; without a device, nothing. Takes
    the better part of a second, which torch's import takes too, and calls of the driver leave the interpreter alone."""
    if importlib.util.find_spec("triton") is not None:  # with it comes a torch that can use a GPU
        threading.Thread(target=_retain, name="wake", daemon=True).start()


def _retain() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)  # for as long as the process lives
