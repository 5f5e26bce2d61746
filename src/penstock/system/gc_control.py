"""When Python's garbage collector runs, and over which objects."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_lock = threading.Lock()
_pauses = 0  # active ones, in all threads
_was_enabled = True  # before the first active pause


@contextmanager
def paused() -> Iterator[None]:
    """Disable collection inside the block. Imports and compilers allocate hundreds of thousands of objects, nearly all
    of them permanent; scanning them again and again takes a fifth of a start. During CUDA graph capture a collection
    could free device memory, which fails the capture."""
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()


YOUNG_OBJECTS = 10_000  # generation 0 threshold of the server's frontend


def tune_for_server() -> None:
    """`freeze_startup_objects`, and collect generation 0 less often: a step of hundreds of sequences allocates hundreds
    of objects that reference counting frees before the next step."""
    freeze_startup_objects()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


@cache
def freeze_startup_objects() -> None:
    """Exempt the objects that exist now, most of them imported, from collection: a full pass between two steps takes 70
    to 200 ms. Once per process: a later call could freeze an engine that is no longer used. Existing garbage must not
    be frozen either: a frame that torch's import leaves behind, for one, refers to all of its callers."""
    gc.collect(0)  # the youngest generation: everything allocated during a pause
    gc.freeze()
