"""Compiles what clients send, in a process of its own:

    python -m penstock.grammar.worker TOKENIZER VOCAB_SIZE ENDS CPU_LIMIT_S

Started by `checker`, not by people. A line of JSON in, a line of JSON out; it ends with its input. Whatever hangs here
is killed, and whatever crashes here crashes alone.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import msgspec

from penstock.errors import PenstockError
from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler

# A fraction of what the engine has: its main thread has 8 MiB, and it compiles on more (see `library`).
STACK_BYTES = 1 << 20
MEMORY_BYTES = 512 << 20  # beyond what the vocabulary takes


class Verdict(msgspec.Struct):
    error: str | None = None
    code: str | None = None  # of the error class
    param: str | None = None


def main(tokenizer: str, vocab_size: str, ends: str, cpu_limit_s: str) -> None:
    compiler = Compiler(Path(tokenizer), int(vocab_size), tuple(map(int, filter(None, ends.split(",")))))
    _say(_judge(compiler, None))
    _bound_memory()
    for line in sys.stdin.buffer:
        _set_alarm(float(cpu_limit_s))
        _say(_judge(compiler, msgspec.json.decode(line, type=Constraint)))
        _set_alarm(0.0)


def _judge(compiler: Compiler, constraint: Constraint | None) -> Verdict:
    try:
        if constraint is None:
            compiler.vocabulary()
        else:
            compiler.compile(constraint)
    except PenstockError as error:
        return Verdict(error.message, error.code, error.param)
    return Verdict()


def _say(verdict: Verdict) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    sys.stdout.buffer.flush()


def _set_alarm(cpu_s: float) -> None:
    """Die of SIGPROF after so much more CPU time, whoever is left to notice; 0: not any more."""
    if hasattr(signal, "setitimer"):  # not everywhere
        signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # not everywhere
        return
    used = sum(int(line.split()[1]) << 10 for line in _status() if line.startswith("VmData:"))
    if used:
        resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES, used + MEMORY_BYTES))


def _status() -> list[str]:
    path = Path("/proc/self/status")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the process that started this one
        signal.signal(number, signal.SIG_IGN)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=main, args=sys.argv[1:5])
    thread.start()
    thread.join()
