"""Single key presses of a full-screen command."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator

QUIT = (b"q", b"Q")


@contextlib.contextmanager
def quitting_on_q() -> Iterator[None]:
    """Inside the block, q ends it, even while the main thread waits. Keys are not echoed. Does nothing where standard
    input is not a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    pressed, (wake, woken) = threading.Event(), os.pipe()
    reader = threading.Thread(target=_read, args=(terminal, wake, pressed), name="keys", daemon=True)
    try:
        tty.setcbreak(terminal)
        reader.start()
        yield
    except KeyboardInterrupt:
        if not pressed.is_set():
            raise
    finally:
        os.close(woken)
        reader.join()
        os.close(wake)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _read(terminal: int, wake: int, pressed: threading.Event) -> None:
    """Until q is pressed, the terminal is gone, or the other end of `wake` is closed."""
    while wake not in (ready := select.select([terminal, wake], [], [])[0]):
        key = os.read(terminal, 1) if ready else b""
        if not key:
            return
        if key in QUIT:
            pressed.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # and wakes it, wherever it waits
            return
