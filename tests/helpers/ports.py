"""Ports for servers that cannot choose one by themselves and are started more than once."""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST, NUMBER = 10_000, 20_000  # below the kernel's own choice (32768 and up), which any process may get at any time
STEP = 50  # from the ports of one process to those of the next

_numbers = count(os.getpid() * STEP)


def reserve_port() -> int:
    """A free port of loopback that no other test process tries at about the same time."""
    for number in _numbers:
        port = FIRST + number % NUMBER
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError
