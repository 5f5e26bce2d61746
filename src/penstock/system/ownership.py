"""Whether this process belongs to Penstock, which decides whether process-wide state may be changed.

Engine processes and the command line claim their process at start. A process that uses `LLM` as a library is its
author's: there Penstock leaves the garbage collector, torch's thread count, the environment and Triton's module state
alone, and never forks.
"""

from __future__ import annotations

_claimed = False


def claim_process() -> None:
    """Allow process-wide changes from here on. For entry points; a program that does nothing beside `LLM` may call it,
    too: its engine then starts as fast as one of the server's."""
    global _claimed
    _claimed = True


def owns_process() -> bool:
    return _claimed
