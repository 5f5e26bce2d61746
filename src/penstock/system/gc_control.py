"""When Python's garbage collector runs, and over what."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_lock = threading.Lock()
_pauses = 0  # under way, in all threads
_was_on = True  # before the first of them


@contextmanager
def paused() -> Iterator[None]:
    """No collection within this. Imports and compilers make objects by the hundred thousand, nearly all to stay, and to
    look for garbage among them again and again is a fifth of a start."""
    global _pauses, _was_on
    with _lock:
        if _pauses == 0:
            _was_on = gc.isenabled()
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_on:
                gc.enable()


YOUNG_OBJECTS = 10_000  # before they are looked through, in a frontend: its tokens come and go by the thousand


def spare_frontend() -> None:
    """`spare`, and collect more rarely: a step of hundreds of sequences makes hundreds of objects that are gone before
    the next one, without any collection."""
    spare()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


@cache
def spare() -> None:
    """Exempt what is there by now, most of it imported, from collection: to go through it between two steps takes 70 to
    200 ms. Once per process: later there may be an engine among it that nobody needs any more. What is garbage already
    must not be among it either: a frame that torch's import leaves, for one, leads to all of its callers."""
    gc.collect(0)  # the youngest generation: all that came during a pause
    gc.freeze()
