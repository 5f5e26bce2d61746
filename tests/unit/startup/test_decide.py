"""Which backend is built for which settings."""

from __future__ import annotations

import re
from types import SimpleNamespace

import msgspec
import pytest

from helpers.model_specs import small_spec
from penstock.errors import InvalidSetting, PenstockError
from penstock.kernels.cpu import library
from penstock.settings import EngineSettings, ModelSettings, Settings, load
from penstock.startup import decide
from penstock.store.files import ModelFiles
from penstock.system import extras


@pytest.mark.parametrize(
    ("device", "dtype", "is_built", "kind"),
    [
        ("cpu", "auto", True, "native"),
        ("cpu", "auto", False, "torch"),
        ("cpu", "float32", True, "torch"),
        ("cuda", "auto", True, "cuda"),
        ("cuda", "float32", False, "cuda"),
    ],
)
def test_choice(
    monkeypatch: pytest.MonkeyPatch, device: decide.DeviceKind, dtype: str, is_built: bool, kind: decide.BackendKind
) -> None:
    monkeypatch.setattr(library, "load", lambda: object() if is_built else None)
    settings = Settings(model=ModelSettings(dtype=dtype))
    assert decide._kind(settings, device) == kind


def test_quantized_weights_need_the_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: None)
    settings = Settings(model=ModelSettings(quantize="int8"))
    with pytest.raises(InvalidSetting, match="on a CPU only the native kernels") as caught:
        decide._kind(settings, "cpu")
    assert caught.value.param == "quantize"
    assert decide._kind(settings, "cuda") == "cuda"


def test_fp8_is_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", object)
    settings = Settings(model=ModelSettings(quantize="fp8"))
    with pytest.raises(InvalidSetting, match="fp8 is for GPUs; on a CPU int8"):
        decide._kind(settings, "cpu")
    assert decide._kind(settings, "cuda") == "cuda"


@pytest.mark.parametrize(
    ("name", "made_in", "device", "chosen"),
    [
        ("auto", "bfloat16", "cpu", "float32"),
        ("auto", "bfloat16", "cuda", "bfloat16"),
        ("auto", "float16", "cuda", "float16"),
        ("auto", "float32", "cuda", "bfloat16"),
        ("float32", "bfloat16", "cuda", "float32"),
        ("bfloat16", "float32", "cpu", "bfloat16"),
    ],
)
def test_dtype(name: str, made_in: str, device: decide.DeviceKind, chosen: str) -> None:
    spec = small_spec(num_layers=1, dtype=made_in)
    assert decide.choose_dtype(Settings(model=ModelSettings(dtype=name)), spec, device) == chosen


@pytest.mark.parametrize(
    ("asked", "driver", "torch", "available", "chosen"),
    [
        ("cpu", True, True, True, "cpu"),
        ("auto", False, True, True, "cpu"),
        ("auto", True, False, True, "cpu"),
        ("auto", True, True, False, "cpu"),
        ("auto", True, True, True, "cuda"),
        ("cuda", True, True, True, "cuda"),
        ("cuda", True, False, True, "device cuda needs torch, which is not installed: "),
        ("cuda", True, True, False, "no CUDA device here, or this torch was built without CUDA"),
    ],
)
def test_device(
    monkeypatch: pytest.MonkeyPatch, asked: str, driver: bool, torch: bool, available: bool, chosen: str
) -> None:
    monkeypatch.setattr(decide, "has_driver", lambda: driver)
    for module in (decide, extras):
        monkeypatch.setattr(module, "has_torch", lambda: torch)
    monkeypatch.setattr(decide, "_torch_has_cuda", lambda: available)
    settings = Settings(model=ModelSettings(device=asked))
    if chosen in ("cpu", "cuda"):
        assert decide._device(settings) == chosen
        return
    with pytest.raises(InvalidSetting, match=re.escape(chosen)) as caught:
        decide._device(settings)
    assert caught.value.param == "device"


@pytest.mark.parametrize(("dtype", "param"), [("float32", "dtype"), ("auto", None)])
def test_torch_operations_need_torch(monkeypatch: pytest.MonkeyPatch, dtype: str, param: str | None) -> None:
    """A dtype of torch's, or no native kernels."""
    monkeypatch.setattr(library, "load", lambda: None)
    monkeypatch.setattr(extras, "has_torch", lambda: False)
    with pytest.raises(InvalidSetting, match=r"needs torch, .*pip install 'penstock\[torch\]'") as caught:
        decide._kind(Settings(model=ModelSettings(dtype=dtype)), "cpu")
    assert caught.value.param == param


def test_what_drafts_on_which_device() -> None:
    files = ModelFiles(name="small", format="safetensors", weights=(), spec=small_spec())
    for kind in ("native", "torch", "cuda"):
        for how in ("auto", "lookup"):
            assert decide._drafts(Settings(engine=EngineSettings(speculate=how)), files, kind) is not None  # type: ignore[arg-type]
    ranks = EngineSettings(speculate="auto", tensor_parallel=2)
    assert decide._drafts(Settings(engine=ranks), files, "cuda") is None
    with pytest.raises(InvalidSetting, match="tensor_parallel on GPUs"):
        decide._drafts(Settings(engine=EngineSettings(speculate="lookup", tensor_parallel=2)), files, "cuda")
    with pytest.raises(PenstockError, match="no folder head with a draft head"):
        decide._drafts(Settings(engine=EngineSettings(speculate="eagle:head")), files, "cuda")
    with pytest.raises(InvalidSetting, match="mtp needs the native CPU kernels"):
        decide._drafts(Settings(engine=EngineSettings(speculate="mtp")), files, "torch")


def decided(monkeypatch: pytest.MonkeyPatch, files: ModelFiles, **settings: object) -> decide.BackendConfig:
    """On a machine with a GPU."""
    monkeypatch.setattr(decide, "_device", lambda _: "cuda")
    return decide.decide(load(settings, environ={}), files)


SMALL = ModelFiles(name="small", format="safetensors", weights=(), spec=small_spec())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel": 2}, "set one of the two"),
        ({"adapter_memory": "auto"}, "adapters on GPUs do not run with it yet"),
        ({"quantize": "int8"}, "quantized weights on a GPU do not run with it yet"),
        ({"kv_dtype": "int8"}, "a KV cache of int8 on a GPU does not run with it yet"),
        ({"kv_dtype": "fp8,int4"}, "a KV cache of fp8,int4 on a GPU"),
    ],
)
def test_what_does_not_go_with_deterministic_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], message: str
) -> None:
    assert decided(monkeypatch, SMALL, **settings).kind == "cuda"
    assert decided(monkeypatch, SMALL, deterministic=True, speculate="lookup").drafts is not None
    with pytest.raises(InvalidSetting, match=message) as caught:
        decided(monkeypatch, SMALL, deterministic=True, **settings)
    assert caught.value.param == "deterministic"


def test_files_with_codes_do_not_go_with_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    files = msgspec.structs.replace(SMALL, format="gguf")
    with pytest.raises(InvalidSetting, match="deterministic: quantized weights"):
        decided(monkeypatch, files, deterministic=True)
    assert decided(monkeypatch, files, deterministic=True, load_format="dummy").kind == "cuda"


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("torch", {}, 1 << 30),
        ("torch", {"tensor_parallel": 2}, 1 << 29),  # ranks share the memory of the host
        ("torch", {"tensor_parallel": 2, "adapter_memory": "3MiB"}, 3 << 20),
        ("cuda", {"tensor_parallel": 2}, 0),
        ("cuda", {"tensor_parallel": 2, "adapters": ("a=/a",)}, 4 << 30),  # of each GPU
    ],
)
def test_memory_for_adapters(kind: str, settings: dict[str, object], expected: int) -> None:
    assert decide._adapter_bytes(load(settings, environ={}), kind) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["native", "cuda"])
def test_heads_of_a_proposer_have_to_fit_the_kv_cache(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its keys and values are of the target's types; said before anything is loaded."""
    layers = small_spec(name="draft", head_dim=18 if kind == "cuda" else 15)
    source = SimpleNamespace(layers=layers, taps=None)
    monkeypatch.setattr(decide, "_drafts", lambda *_: source)
    monkeypatch.setattr(decide, "_kind", lambda *_: kind)
    assert decided(monkeypatch, SMALL).drafts is source  # type: ignore[comparison-overlap]
    with pytest.raises(InvalidSetting, match=r"kv_dtype: int4 needs heads of .*, draft has heads of 1[58]") as caught:
        decided(monkeypatch, SMALL, kv_dtype="int4")
    assert caught.value.param == "kv_dtype"
