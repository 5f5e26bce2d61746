"""All instruction sets with a fused multiply-add give the same results to the last bit, on x86 and on ARM.

`kernel_digest.cpp` runs every kernel over pseudo-random inputs and prints a digest of the results by instruction set.
It is linked with the installed library; and with kernels compiled for ARM, to run in an emulator. Compiling those takes
some seconds of CPU, so build/arm keeps the object files.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from penstock.kernels import sampling_layout
from penstock.kernels.cpu import library

ROOT = Path(__file__).parents[4]
NATIVE = ROOT / "src/penstock/kernels/cpu/native"
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", f"-I{NATIVE}", str(Path(__file__).with_name("kernel_digest.cpp")))
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", ("qemu-aarch64", "qemu-aarch64-static")
# Their multiply-add rounds the product: nothing that sums products agrees with the others.
UNFUSED = {"portable"} if platform.machine() in ("x86_64", "AMD64") else set()

Digests = dict[str, dict[str, str]]  # by instruction set and kernel


@pytest.fixture
def build_native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(ROOT)  # its paths are relative
    spec = importlib.util.spec_from_file_location("build_native", ROOT / "build_native.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digests(output: str) -> Digests:
    found: Digests = {}
    for line in output.splitlines():
        isa, kernel, digest = line.split()
        found.setdefault(isa, {})[kernel] = digest
    return found


@pytest.fixture
def of_this_machine(tmp_path: Path, build_native: ModuleType) -> Digests:
    if library.load() is None:
        pytest.skip("the native library was not built")
    compiler = build_native.find_compiler()
    if shutil.which(compiler[0]) is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "draw_params.h").write_text(sampling_layout.c_header())
    made = tmp_path / "kernel_digest"
    run(*compiler, *FLAGS, f"-I{tmp_path}", library.PATH, f"-Wl,-rpath,{library.PATH.parent}", "-o", made)
    return digests(run(made))


def test_instruction_sets_of_this_machine_agree(of_this_machine: Digests) -> None:
    fused = {isa: of_this_machine[isa] for isa in of_this_machine if isa not in UNFUSED}
    if not fused:
        pytest.skip("no fused multiply-add here")
    expected = next(iter(fused.values()))
    assert fused == dict.fromkeys(fused, expected)
    assert len(set(expected.values())) == len(expected) > 10
    for isa in UNFUSED:
        assert of_this_machine[isa]["quantize"] == expected["quantize"]


def test_arm_agrees(of_this_machine: Digests, build_native: ModuleType) -> None:
    """Portable kernels, NEON and dot products, emulated, with each other and with this machine."""
    emulator = next(filter(None, map(shutil.which, EMULATOR)), None)
    if emulator is None or shutil.which(CROSS_COMPILER) is None:
        pytest.skip(f"needs {CROSS_COMPILER} and {EMULATOR[0]} (Debian: g++-aarch64-linux-gnu, qemu-user)")
    folder = ROOT / "build/arm"
    objects = build_native.compile_all(folder, [CROSS_COMPILER], "aarch64", ("-O1", "-g0"))
    made = folder / "kernel_digest"
    run(CROSS_COMPILER, *FLAGS, f"-I{folder}", *objects, "-static", "-pthread", "-o", made)
    found = digests(run(emulator, made))
    assert list(found) == ["portable", "neon", "dotprod"]
    assert found["neon"] == found["portable"]
    assert found["dotprod"] == found["portable"]
    for isa, theirs in of_this_machine.items():
        if isa not in UNFUSED:
            assert theirs == found["portable"], isa
