"""Triton's internals: each fast path where it is there, and the warning and the slow path where it is not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from penstock.forward import cuda_startup
from penstock.kernels import torch_internals
from penstock.kernels.cuda import triton_internals
from penstock.kernels.cuda.precompile import Precompiler
from penstock.system.slow_paths import warn_slow_path

GRID, CONSTANTS = (2, 3, 4), (128, True)


class Launcher:
    """Triton's, of which only the call of the C function matters."""

    global_scratch_size = profile_scratch_size = 0
    cooperative, overlap = False, True

    def __init__(self, launch: Callable[..., None]) -> None:
        self.launch = launch


class Flat(Launcher):
    """As in Triton 3.6."""

    def __call__(self, x: Any, y: Any, z: Any, stream: Any, function: Any, *args: Any) -> None:
        self.launch(x, y, z, stream, function, self.cooperative, self.overlap, None, None, *args)


class InATuple(Launcher):
    """As in Triton 3.8."""

    def __call__(self, x: Any, y: Any, z: Any, stream: Any, function: Any, metadata: Any, *args: Any) -> None:
        hooks, arguments = args[:3], args[3:]
        flags = (self.cooperative, self.overlap)
        self.launch(x, y, z, stream, function, *flags, metadata, *hooks, None, None, b"pi", ("*fp32",), arguments)


class Reordered(Launcher):
    """As in no version that is known: the stream comes behind the function."""

    def __call__(self, x: Any, y: Any, z: Any, stream: Any, function: Any, *args: Any) -> None:
        self.launch(x, y, z, function, stream, *args)


class Repeating(Flat):
    """The grid once more, where a fixed value would be expected."""

    def __call__(self, x: Any, y: Any, z: Any, stream: Any, function: Any, *args: Any) -> None:
        self.launch(x, y, z, stream, function, x, *args)


class Allocating(Flat):
    global_scratch_size = 64


class Compiled:
    """A compiled kernel."""

    def __init__(self, kind: type[Launcher]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.run, self.function, self.packed_metadata = kind(lambda *args: self.calls.append(args)), 77, (4, 1)  # type: ignore[operator]
        self.slow: list[Any] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args: self.slow.append((grid, args))


@pytest.fixture(autouse=True)
def _warnings() -> None:
    warn_slow_path.cache_clear()


@pytest.fixture(autouse=True)
def _stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_internals, "stream_functions", lambda: (lambda: 0, lambda device: 1000 + device))


@pytest.mark.parametrize("kind", [Flat, InATuple])
def test_a_kernel_is_launched_as_triton_itself_would(kind: type[Launcher], caplog: pytest.LogCaptureFixture) -> None:
    compiled, tensor = Compiled(kind), torch.zeros(4)
    launch = triton_internals.direct_launch(compiled)
    assert compiled.calls == []
    launch(GRID, (tensor, 5), CONSTANTS)
    compiled.run(*GRID, 1000, 77, (4, 1), None, None, None, tensor.data_ptr(), 5, *CONSTANTS)
    ours, tritons = compiled.calls
    assert ours == tritons
    assert caplog.text == ""


@pytest.mark.parametrize("kind", [Reordered, Repeating, Allocating, Launcher])
def test_a_launcher_of_another_kind_is_left_to_launch(kind: type[Launcher], caplog: pytest.LogCaptureFixture) -> None:
    compiled, tensor = Compiled(kind), torch.zeros(4)
    triton_internals.direct_launch(compiled)(GRID, (tensor, 5), CONSTANTS)
    triton_internals.direct_launch(compiled)(GRID, (tensor, 6), CONSTANTS)
    assert [(grid, args[1:]) for grid, args in compiled.slow] == [(GRID, (5, *CONSTANTS)), (GRID, (6, *CONSTANTS))]
    assert [record.getMessage() for record in caplog.records] == [
        "this version of triton has no kernel launcher as Penstock knows it: every launch takes microseconds longer"
    ]


def test_the_installed_triton_is_launched_directly() -> None:
    """Its real launcher, without the C function: the layout is one of those that are known."""
    launcher = importlib.import_module("triton.backends.nvidia.driver").CudaLauncher
    run = launcher.__new__(launcher)
    vars(run).update(
        global_scratch_size=0, profile_scratch_size=0, global_scratch_align=1, profile_scratch_align=1, num_ctas=1,
        launch_cooperative_grid=False, launch_pdl=True, gsan_enabled=False, arg_annotations=b"", kernel_signature=(),
        launch=None,
    )  # fmt: skip
    driver = importlib.import_module("triton.runtime.driver").driver
    driver.set_active(object())
    try:
        layout = triton_internals._learn_layout(SimpleNamespace(run=run, function=77, packed_metadata=(4, 1)))
    finally:
        driver.reset_active() if torch.cuda.is_available() else driver.set_active(None)
    assert layout is not None
    assert True in layout[0]  # launch_pdl


def test_the_installed_triton_defers_compilation() -> None:
    triton_internals.can_defer_compilation.cache_clear()
    assert triton_internals.can_defer_compilation()


@pytest.mark.parametrize("missing", ["mode", "use"])
def test_without_asynchronous_compilation_nothing_is_compiled_ahead(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if missing == "mode":
        monkeypatch.delattr("triton.runtime._async_compile.active_mode")
    else:
        monkeypatch.setattr("triton.runtime.jit.JITFunction._do_compile", lambda self: None)
    triton_internals.can_defer_compilation.cache_clear()
    precompiler = Precompiler(processes=1)
    cuda_startup.precompile(precompiler, None, None, None, dtype=torch.bfloat16)  # type: ignore[arg-type]
    assert precompiler.keys == set()
    assert "no asynchronous compilation" in caplog.text
    triton_internals.can_defer_compilation.cache_clear()


def test_without_a_key_triton_computes_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("triton.runtime.cache.triton_key")
    triton_internals.replace_key("ours")
    assert not hasattr(importlib.import_module("triton.runtime.cache"), "triton_key")
    assert "no triton_key" in caplog.text


def test_a_launcher_that_needs_no_compiling_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("triton.backends.nvidia.driver.CudaLauncher")
    triton_internals.build_launcher(SimpleNamespace(src=None, metadata=None))
    assert "no CudaLauncher" in caplog.text
