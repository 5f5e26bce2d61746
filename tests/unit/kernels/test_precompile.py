"""Precompiling: what is collected without a device is what a launch on one takes. Needs Triton, but no device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

pytest.importorskip("triton", reason="triton is not installed")

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import get_cache_manager
from triton.runtime.driver import driver

from helpers import tiny_models
from helpers.paged_model import PagedModel
from penstock.forward.adapter_loading import share_spec
from penstock.forward.cuda_pages import CudaPages
from penstock.forward.cuda_ranks import SilentRanks
from penstock.forward.cuda_startup import PLAIN, SHORT, Extras, StepSizes, precompile
from penstock.forward.delta_tiles import step_deltas
from penstock.forward.device_adapters import delta_memory
from penstock.forward.memory import CacheSize
from penstock.forward.readback import Readback
from penstock.kernels.cuda.launch import Launcher
from penstock.kernels.cuda.precompile import Precompiler
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.cuda_rank_ops import CudaRankOperations
from penstock.kernels.reference import linear
from penstock.model import Decoder
from penstock.model.load_coded import load_coded
from penstock.model.load_dense import load_dense
from penstock.model.weights.coded_form import CodedForm
from penstock.model.weights.dense_form import DenseForm
from penstock.model.weights.dummy_tensors import BlankSource
from penstock.model.weights.place import WHOLE, Shard, vocabulary_parts
from penstock.model.weights.rounding import Rounding
from penstock.store.kv_types import kv_types
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec
from penstock.system import ownership

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels that were compiled for a device would be launched"),
    pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning"),  # of the test run's own
]

META = torch.device("meta")
SIZES = StepSizes(block_size=16, context=512, step_tokens=256, max_sequences=128)
DETERMINISTIC = Extras(deterministic=True)


class H200:
    """All that Triton asks of a device to choose a variant."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(ownership, "_claimed", True)
    monkeypatch.setattr(Readback, "tolist", lambda self: [0] * len(self._host))  # there is nothing to read on `meta`
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))
    driver.set_active(H200())
    yield
    driver.set_active(None)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return resolve(str(tiny_models.make(request.param, tmp_path_factory.mktemp(request.param)))).spec


def made(kv: str, dtype: torch.dtype, device: torch.device) -> CudaPages:
    """`kv`: of the settings, or 16-bit."""
    return CudaPages(kv_types(kv)._replace(on_gpu=True), None, dtype, device)


def noted(
    spec: ModelSpec,
    dtype: torch.dtype,
    sizes: StepSizes = SIZES,
    extras: Extras = PLAIN,
    kv: str = "bfloat16",
    shard: Shard = WHOLE,
) -> Precompiler:
    precompiler = Precompiler(processes=2)
    precompile(precompiler, spec, sizes, made(kv, dtype, META), dtype=dtype, shard=shard, extras=extras)
    return precompiler


@pytest.mark.parametrize("extras", [PLAIN, Extras(adapted=True), DETERMINISTIC])
@pytest.mark.parametrize("max_sequences", [8, 128])
@pytest.mark.parametrize(
    ("dtype", "kv"),
    [
        (torch.bfloat16, "bfloat16"),
        (torch.float32, "float32"),
        (torch.bfloat16, "fp8"),
        (torch.bfloat16, "int8,int4"),
        (torch.float32, "int4"),
    ],
)
def test_real_tensors_take_the_variants_that_were_noted_on_meta(
    spec: ModelSpec, dtype: torch.dtype, kv: str, max_sequences: int, extras: Extras, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Precompiler, "submit", lambda self, key, *_: self.keys.add(key))  # not compiled
    planned = noted(spec, dtype, SIZES._replace(max_sequences=max_sequences), extras, kv).keys
    monkeypatch.setattr(linear, "prefers_onednn", lambda *_: False)
    monkeypatch.setattr(CudaOperations, "logits", lambda _, x, weight, __: (x @ weight.dense.T).float())
    cpu = torch.device("cpu")
    model = load_dense(spec, BlankSource(cpu), dtype=dtype, device=cpu, context=SIZES.context)
    size = CacheSize(SIZES.block_size, (512,) * len(spec.cache_groups), (0,) * len(spec.cache_groups))
    pages = made(kv, dtype, cpu).allocate(spec, size)
    ops = CudaOperations(extras.deterministic)
    memory = delta_memory(spec, dtype, cpu, 1 << 20)

    def adapt(owners: list[None]) -> None:
        ops.deltas = step_deltas(memory, np.ones(len(owners), dtype=np.int32)) if extras.adapted else None

    paged = PagedModel(model, block_size=SIZES.block_size, ops=ops, dtype=dtype, adapt=adapt, pages=pages)
    launched = Precompiler(processes=1)
    with launched.collecting():
        for length in (250, 100, 40, 25, 10, 1):
            paged.add([1] * (length + 8))
            paged.step({len(paged.sequences) - 1: length})
        for step in ({0: 1}, {0: 1, 1: 1, 2: 3}, dict.fromkeys(range(6), 1)):
            paged.step(step)
    assert len(launched.keys) > 5
    assert launched.keys <= planned


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_with_adapters_take_the_variants_that_were_noted_on_meta(
    rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whose parts of the vocabulary are not equal."""
    monkeypatch.setattr(Precompiler, "submit", lambda self, key, *_: self.keys.add(key))
    monkeypatch.setattr(CudaOperations, "logits", lambda _, x, weight, __: (x @ weight.dense.T).float())
    spec = resolve(str(tiny_models.make("qwen3", tmp_path, vocab_size=tiny_models.VOCAB + 1))).spec
    shard, dtype, cpu = Shard(rank, 2), torch.bfloat16, torch.device("cpu")
    planned = noted(spec, dtype, extras=Extras(adapted=True), shard=shard).keys
    model = load_dense(spec, BlankSource(cpu), dtype=dtype, device=cpu, context=SIZES.context, shard=shard)
    memory = delta_memory(share_spec(spec, shard), dtype, cpu, 1 << 20)
    pages = made("bfloat16", dtype, cpu).allocate(model.spec, CacheSize(SIZES.block_size, (512,), (0,)))
    own = CudaOperations()

    def adapt(owners: list[None]) -> None:
        own.deltas = step_deltas(memory, np.ones(len(owners), dtype=np.int32))

    ops = CudaRankOperations(own, SilentRanks(*shard), vocabulary_parts(spec.vocab_size, 2))
    paged = PagedModel(model, block_size=SIZES.block_size, ops=ops, dtype=dtype, adapt=adapt, pages=pages)
    launched = Precompiler(processes=1)
    with launched.collecting():
        for length in (250, 25, 1):
            paged.add([1] * (length + 8))
            paged.step({len(paged.sequences) - 1: length})
    assert len(launched.keys) > 5
    assert launched.keys <= planned


@pytest.mark.parametrize("quantize", ["int4", "int8", "fp8"])
def test_weights_of_codes_take_the_variants_that_were_noted_on_meta(
    quantize: Rounding, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Precompiler, "submit", lambda self, key, *_: self.keys.add(key))
    spec = resolve(str(tiny_models.make("qwen3", tmp_path, hidden_size=256, intermediate_size=384))).spec

    def blank(device: torch.device, layers: int) -> Decoder:
        form = CodedForm(DenseForm(torch.bfloat16, device), quantize)
        return load_coded(replace(spec, num_layers=layers), BlankSource(device), form, context=SIZES.context)

    planned = Precompiler(processes=1)
    extras = Extras(blank=lambda layers: blank(META, layers))
    precompile(planned, spec, SIZES, made("bfloat16", torch.bfloat16, META), dtype=torch.bfloat16, extras=extras)
    assert not planned.keys <= noted(spec, torch.bfloat16).keys
    monkeypatch.setattr(CudaOperations, "logits", lambda _, x, weight, __: (x @ weight.dense.T).float())
    cpu = torch.device("cpu")
    paged = PagedModel(blank(cpu, 3), block_size=SIZES.block_size, ops=CudaOperations(), dtype=torch.bfloat16)
    launched = Precompiler(processes=1)
    with launched.collecting():
        for length in (250, 100, 40, 25, 10, 1):
            paged.add([1] * (length + 8))
            paged.step({len(paged.sequences) - 1: length})
    assert len(launched.keys) > 5
    assert launched.keys <= planned.keys


def test_a_layer_of_each_kind_is_enough(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Precompiler, "submit", lambda self, key, *_: self.keys.add(key))
    doubled = replace(spec, num_layers=2 * spec.num_layers, windows=spec.windows * 2)
    assert noted(spec, torch.bfloat16).keys == noted(doubled, torch.bfloat16).keys


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("extras", [PLAIN, DETERMINISTIC])
def test_short_steps_take_the_kernels_of_large_ones(
    spec: ModelSpec, dtype: torch.dtype, extras: Extras, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Precompiler, "submit", lambda self, key, *_: self.keys.add(key))
    large = SIZES._replace(context=4 * SHORT, step_tokens=2 * SHORT)
    short = noted(spec, dtype, large, extras).keys  # of large ones no more, as long as nothing is at work
    monkeypatch.setattr("penstock.forward.cuda_startup.SHORT", large.step_tokens)
    assert noted(spec, dtype, large, extras).keys == short


@pytest.mark.parametrize("spec", ["qwen3"], indirect=True)  # one is enough: this takes seconds
@pytest.mark.parametrize("extras", [PLAIN, DETERMINISTIC])
def test_what_was_noted_is_compiled_where_triton_looks_for_it(spec: ModelSpec, extras: Extras) -> None:
    sizes = SIZES._replace(max_sequences=2)
    precompiler = noted(spec, torch.bfloat16, sizes, extras)
    precompiler.wait()
    for key in precompiler.keys:
        manager = get_cache_manager(key)
        assert any(path.suffix == ".cubin" for path in Path(manager.cache_dir).iterdir())
    again = noted(spec, torch.bfloat16, sizes, extras)
    assert again.keys == precompiler.keys
    assert not again.is_compiling  # all of it is there


def fails() -> None:
    raise ZeroDivisionError


def hangs() -> None:
    threading.Event().wait()


def begun(compile_it: Callable[[], None]) -> Precompiler:
    precompiler = Precompiler(processes=1)
    with precompiler.collecting():
        precompiler.submit("key", compile_it, None)
    assert precompiler.is_compiling
    return precompiler


def test_what_cannot_be_compiled_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    with begun(fails):
        pass
    assert "precompiling is incomplete" in caplog.text


def test_a_process_of_somebody_else_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA and threads may be live in it."""
    monkeypatch.setattr(ownership, "_claimed", False)
    compiled_in: list[int] = []
    begun(lambda: compiled_in.append(os.getpid())).wait()
    assert compiled_in == [os.getpid()]


def test_an_error_does_not_wait_for_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kernels.cuda.precompile.PATIENCE_S", 3600)
    with pytest.raises(MemoryError), begun(hangs):
        raise MemoryError


def test_nothing_new_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kernels.cuda.precompile.PATIENCE_S", 3600)
    precompiler = begun(hangs)
    with precompiler.collecting():
        precompiler.submit("key", hangs, None)
    assert precompiler.is_compiling
    precompiler.__exit__(MemoryError(), None)
    assert not precompiler.is_compiling


def test_a_cache_that_is_no_folder_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.runtime.cache.get_cache_manager", lambda name: object())
    begun(fails).wait()


def test_what_is_compiled_is_not_launched_either() -> None:
    """What it reads may come from a kernel that is not compiled yet."""
    launches: list[object] = []
    launcher = Launcher(object())
    key = (torch.bfloat16, (7,), 4)
    launcher._compiled[key] = lambda *arguments: launches.append(arguments)
    with Precompiler(processes=1).collecting():
        launcher((1, 1, 1), torch.bfloat16, (), (7,), num_warps=4)
    assert launches == []
    launcher((1, 1, 1), torch.bfloat16, (), (7,), num_warps=4)
    assert len(launches) == 1
