"""Finds and loads the native library, if it was built when the package was installed."""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

from penstock.errors import InvalidSetting, PenstockError
from penstock.kernels import sampling_layout
from penstock.kernels.cpu.header_digest import header_digest

PATH = Path(__file__).parent / "libpenstock.so"
HEADERS = Path(__file__).parent / "native"  # in a source tree
CHOICE = "PENSTOCK_CPU"  # an instruction set: avx2, neon, …; for tests and for finding out what one is worth

log = logging.getLogger(__name__)

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64
# name -> result, arguments; see native/penstock.h
SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "penstock_isa": (ctypes.c_char_p, ()),
    "penstock_select": (ctypes.c_int, (ctypes.c_char_p,)),
    "penstock_quantize": (None, (_pointer, _int64, _int64, _pointer)),
    "penstock_linear": (
        None,
        (_pointer, _pointer, _pointer, _int64, _pointer, _pointer, _int64, ctypes.c_int, _int64, _int64),
    ),
    "penstock_gather": (None, (_pointer, _pointer, _int64, ctypes.c_float, _pointer)),
    "penstock_to_panels": (
        None,
        (_pointer, _int64, _int64, _int64, _int64, _int64, ctypes.c_int, ctypes.c_uint32, _pointer),
    ),
    "penstock_quantize_weights": (None, (_pointer, _int64, ctypes.c_int, _pointer, _pointer)),
    "penstock_pack_codes": (ctypes.c_float, (_pointer, _int64, _int64, ctypes.c_int, _pointer)),
    "penstock_headers": (ctypes.c_uint32, ()),
    "penstock_draw_params": (ctypes.c_char_p, ()),
    "penstock_draw": (ctypes.c_int32, (_pointer, _int64, _pointer, _pointer, _pointer, _int64, _pointer)),
    "penstock_filter": (None, (_pointer, _int64, _pointer, _pointer, _pointer, _pointer)),
    "penstock_pool_new": (_pointer, (ctypes.c_int,)),
    "penstock_pool_free": (None, (_pointer,)),
    "penstock_program_new": (_pointer, (_pointer, _pointer, _pointer, ctypes.c_int32, _pointer)),
    "penstock_program_free": (None, (_pointer,)),
    "penstock_program_run": (ctypes.c_int, (_pointer, _pointer)),
    "penstock_program_buffer": (_pointer, (_pointer, ctypes.c_int32)),
    "penstock_program_profile": (ctypes.POINTER(_int64), (_pointer, ctypes.c_int)),
}


@cache
def load() -> ctypes.CDLL | None:
    """None: it was not built, which one line in the log says."""
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        log.warning("no native CPU kernels (%s): computing with torch's operators, which is slower", error)
        return None
    if not _declare(library) or not _same_layouts(library):
        raise PenstockError(
            f"{PATH} was built from other sources than these. Build it again: python setup.py build_ext --inplace"
        )
    if (wanted := os.environ.get(CHOICE)) and not library.penstock_select(wanted.encode()):
        raise InvalidSetting(f"{CHOICE}: this machine or this build has no {wanted!r} kernels", param=CHOICE)
    return library


def _declare(library: ctypes.CDLL) -> bool:
    """False: functions are missing."""
    if not all(hasattr(library, name) for name in SIGNATURES):
        return False
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return True


def _same_layouts(library: ctypes.CDLL) -> bool:
    headers = header_digest(HEADERS)
    draw_params: str = library.penstock_draw_params().decode()
    return headers in (None, library.penstock_headers()) and draw_params == sampling_layout.SIGNATURE


def native_library() -> ctypes.CDLL:
    """For callers that have no other way to compute."""
    library = load()
    assert library is not None, "the native library is not built"
    return library


def build() -> tuple[int, int]:
    """Another one for every build of the library: what was measured with one build says nothing about the next."""
    found = PATH.stat()
    return found.st_size, found.st_mtime_ns


def isa() -> str | None:
    """The instruction set whose kernels are in use."""
    library = load()
    return None if library is None else library.penstock_isa().decode()
