"""When Python's garbage collector runs, and over what."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def paused() -> Iterator[None]:
    """No collection within this. Imports and compilers make objects by the hundred thousand, nearly all to stay, and to
    look for garbage among them again and again is a fifth of a start."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def spare() -> None:
    """Exempt what is there by now, most of it imported, from collection: to go through it between two steps takes 70 to
    200 ms. Once per process: later there may be an engine among it that nobody needs any more."""
    gc.freeze()
