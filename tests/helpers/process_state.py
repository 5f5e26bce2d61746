"""All process-wide state that a library could change behind its caller's back, as one comparable dict.

Imported by fresh interpreters: it must not import penstock or pytest.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import decimal
import faulthandler
import gc
import importlib
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def snapshot() -> dict[str, Any]:
    """torch, numpy and Triton are looked at only where they are imported."""
    return {
        "environ": dict(os.environ),
        "cwd": str(Path.cwd()),
        "umask": _umask(),
        "affinity": os.sched_getaffinity(0),
        "nice": os.nice(0),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "locale": locale.setlocale(locale.LC_ALL),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), list(gc.callbacks)),
        "signals": {int(number): signal.getsignal(number) for number in signal.valid_signals()},
        "signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timers": [signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
        "interpreter": (sys.getswitchinterval(), sys.getrecursionlimit(), sys.get_int_max_str_digits()),
        "tracing": (sys.gettrace(), sys.getprofile(), faulthandler.is_enabled()),
        "bytecode": (sys.pycache_prefix, sys.dont_write_bytecode),
        "paths": (list(sys.path), list(sys.meta_path), list(sys.path_hooks), list(sys.argv)),
        "streams": (id(sys.stdin), id(sys.stdout), id(sys.stderr), id(sys.displayhook)),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "builtins": {name: id(value) for name, value in vars(builtins).items()},
        "warnings": (list(warnings.filters), warnings.showwarning),
        "logging": _logging(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "stack size": threading.stack_size(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "event loop": _quietly(lambda: type(asyncio.get_event_loop_policy())),
        "exit functions": atexit._ncallbacks(),
        "children": _children(),
        "sockets": socket.getdefaulttimeout(),
        "decimal": str(decimal.getcontext()),
        "random": hash(random.getstate()),
        "denormals": sys.float_info.min / 2 > 0,
        **_of("numpy", _numpy),
        **_of("torch", _torch),
        **_of("triton.runtime.cache", lambda cache: {"triton key": cache.triton_key}),
        **_of("zmq", lambda zmq: {"zmq": zmq.Context._instance}),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What differs, and is in both: a library may be imported between the two."""
    return {name: (before[name], after[name]) for name in before.keys() & after if before[name] != after[name]}


def open_files() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} {entry.readlink()}")
        except OSError:  # the listing's own
            continue
    return {one for one in found if "/proc/" not in one}


def _of(module: str, look: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    return look(importlib.import_module(module)) if module in sys.modules else {}


def _numpy(numpy: Any) -> dict[str, Any]:
    kind, keys, *rest = numpy.random.get_state()
    return {"numpy": (numpy.geterr(), numpy.get_printoptions(), kind, keys.tobytes(), rest)}


def _torch(torch: Any) -> dict[str, Any]:
    backends = torch.backends
    return {
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch defaults": (torch.get_default_dtype(), torch.get_default_device()),
        "torch modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled()),
        "torch determinism": torch.are_deterministic_algorithms_enabled(),
        "torch precision": (torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32),
        "torch cudnn": (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.allow_tf32),
        "torch mkldnn": backends.mkldnn.enabled,
        "torch random": torch.get_rng_state().numpy().tobytes(),
        "torch printing": str(torch.tensor(0.123456789)),
        "torch anomaly": torch.is_anomaly_enabled(),
    }


def _logging() -> dict[str, Any]:
    loggers = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    return {
        "disabled": logging.root.manager.disable,
        "classes": (logging.getLoggerClass(), logging.getLogRecordFactory()),
        "loggers": {
            name: (one.level, list(one.handlers), one.propagate, one.disabled, list(one.filters))
            for name, one in loggers.items()
            if isinstance(one, logging.Logger)
            # Of what was not configured nothing is to be told: modules create their loggers as they are imported.
            and (one.level or one.handlers or one.filters or one.disabled or not one.propagate)
        },
    }


def _children() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended since it was listed
            found.update((task / "children").read_text().split())
    return found


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _quietly(look: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return look()
