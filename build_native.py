"""Builds the native CPU kernels; `setup.py` calls it when the package is installed.

Files under `native` named in KERNELS are compiled once per instruction set of the kind of machine, the others once. The
instruction set is chosen when the library is loaded. kernels/sampling_layout.py generates `draw_params.h`. The compiler
is $CXX, the system's, or the package ziglang. If the build fails, the install goes on with a warning, and the package
needs torch to compute.

    python setup.py build_ext --inplace              into the source tree, what an editable install does too
    PENSTOCK_SANITIZE=1 python setup.py build_ext --build-lib DIR    with AddressSanitizer and UBSan
"""

from __future__ import annotations

import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/penstock/kernels/cpu/native")
HEADER_DIGEST = NATIVE.parent / "header_digest.py"
SAMPLING_LAYOUT = Path("src/penstock/kernels/sampling_layout.py")  # generates draw_params.h
LIBRARY = "libpenstock.so"
EXTENSION = Extension("penstock.kernels.cpu.native_library", sources=[])

KERNELS = ("attention.cpp", "draw.cpp", "linear.cpp", "low_rank.cpp", "rotate.cpp", "rows.cpp", "table.cpp")
COMMON = (
    "-std=c++17",
    "-O3",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wno-uninitialized",  # GCC 12 has its doubts about its own AVX-512 intrinsics
    "-Wno-maybe-uninitialized",
    "-Wno-psabi",
    "-Wno-unknown-warning-option",
    "-pthread",
)


class InstructionSet(NamedTuple):
    flags: tuple[str, ...] = ()
    base: str = ""  # a set whose kernels this one shares, but for those of EXTENDED


EXTENDED = ("linear.cpp", "table.cpp")
AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
X86 = {
    "portable": InstructionSet(),
    "avx2": InstructionSet(AVX2),
    "avx512": InstructionSet(AVX512),
    "avx512vnni": InstructionSet((*AVX512, "-mavx512vnni"), base="avx512"),
}
ARM = {
    "portable": InstructionSet(),
    "neon": InstructionSet(("-DPENSTOCK_NEON",)),
    "dotprod": InstructionSet(("-DPENSTOCK_NEON", "-mcpu=generic+dotprod"), base="neon"),
}
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")


def requirements() -> list[str]:
    """What an isolated build needs beyond setuptools: a compiler that comes as a package, where there is no other."""
    return ["ziglang"] if "ziglang" in find_compiler() else []


class BuildNative(build_ext):
    """The library belongs to no Python version: it knows nothing of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")[:-1]) / LIBRARY)

    def build_extension(self, extension: Extension) -> None:
        try:
            build(Path(self.build_temp), Path(self.get_ext_fullpath(extension.name)))
        except (RuntimeError, OSError) as error:
            self.warn(f"the native CPU kernels are not built, so penstock needs torch to compute: {error}")

    def copy_extensions_to_source(self) -> None:
        """Not over the old file: a process may have it loaded."""
        built, target = Path(self.build_lib, NATIVE.parent.relative_to("src"), LIBRARY), NATIVE.parent / LIBRARY
        if built.exists():
            fresh = shutil.copy2(built, target.with_suffix(".new"))
            Path(fresh).replace(target)


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def build(folder: Path, library: Path) -> None:
    compiler, sanitize = find_compiler(), SANITIZE if os.environ.get("PENSTOCK_SANITIZE") else ()
    objects = compile_all(folder / ("sanitized" if sanitize else "native"), compiler, platform.machine(), sanitize)
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(".new")  # replaced at once: a process may have the old one loaded
    run([*compiler, *sanitize, "-shared", "-pthread", "-o", str(made), *map(str, objects)])
    made.replace(library)


def compile_all(folder: Path, compiler: list[str], machine: str, extra: tuple[str, ...] = ()) -> list[Path]:
    """The object files of the library for a kind of machine; those that are newer than the sources stay."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "draw_params.h").write_text(runpy.run_path(str(SAMPLING_LAYOUT))["c_header"]())
    headers = max(file.stat().st_mtime for file in (*NATIVE.glob("*.h"), SAMPLING_LAYOUT, Path(__file__)))
    defines, sets = instruction_sets(machine)
    digest = runpy.run_path(str(HEADER_DIGEST))["header_digest"](NATIVE)
    flags = (*COMMON, *defines, *extra, f"-DPENSTOCK_HEADERS={digest}u", f"-I{folder}")
    jobs = []
    for source in sorted(NATIVE.glob("*.cpp")):
        if source.name not in KERNELS:
            jobs.append((folder / f"{source.stem}.o", [*flags, str(source)]))
            continue
        for name, isa in sets.items():
            if isa.base and source.name not in EXTENDED:
                continue
            options = (f"-DPENSTOCK_ISA={name}", *((f"-DPENSTOCK_BASE={isa.base}",) if isa.base else ()), *isa.flags)
            jobs.append((folder / f"{source.stem}.{name}.o", [*flags, *options, str(source)]))

    def compile_one(job: tuple[Path, list[str]]) -> Path:
        made, arguments = job
        newest = max(headers, Path(arguments[-1]).stat().st_mtime)
        if not made.exists() or made.stat().st_mtime < newest:
            run([*compiler, *arguments, "-c", "-o", str(made)])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, jobs))


def instruction_sets(machine: str) -> tuple[tuple[str, ...], dict[str, InstructionSet]]:
    """What dispatch.cpp must define to know them, and their kernels; `machine` as `platform.machine` names it."""
    if machine.lower() in ("x86_64", "amd64"):
        return ("-DPENSTOCK_X86",), X86
    if machine.lower() in ("aarch64", "arm64"):
        return ("-DPENSTOCK_ARM",), ARM
    return (), {"portable": InstructionSet()}


def find_compiler() -> list[str]:
    if "CXX" in os.environ:
        return shlex.split(os.environ["CXX"])
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return [found] if found else [sys.executable, "-m", "ziglang", "c++"]


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)  # noqa: T201
