"""Every "auto" of an engine's settings becomes a value: device, type, backend, KV cache, steps, drafts.

A setting that this machine, the model or another setting does not allow raises InvalidSetting here, before the model
is loaded.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import cast

from penstock.errors import InvalidSetting
from penstock.forward.backend import BackendConfig, BackendKind, DeviceKind, StepLimits
from penstock.kernels.arrays import Dtype
from penstock.kernels.cpu import library
from penstock.model import parameter_bytes
from penstock.model.weights.kv_scales import KvScales, read_kv_scales
from penstock.model.weights.place import Shard
from penstock.settings import Settings, parse_bytes
from penstock.speculate.proposer import DraftSource
from penstock.speculate.registry import prepare as prepare_drafts
from penstock.startup import process_tuning
from penstock.startup.gpu_warmup import wake_device
from penstock.startup.preflight import has_driver
from penstock.store.files import ModelFiles
from penstock.store.kv_types import QUANTIZED, KvTypes, kv_types
from penstock.store.spec import ModelSpec
from penstock.store.spec_check import chosen_context
from penstock.system.extras import INSTALL_TORCH, has_torch, require_torch
from penstock.system.resources import cores

logger = logging.getLogger(__name__)

CPU_LIMITS = StepLimits(step_tokens=512, max_sequences=64, lookahead=0)
GPU_LIMITS = StepLimits(step_tokens=8192, max_sequences=512, lookahead=1)
ADAPTER_MEMORY = "1GiB"  # a hundred adapters of rank 16 for a model of 135 million parameters
GPU_ADAPTER_MEMORY = "4GiB"  # 51 of rank 16 for one of 8 billion
# Bytes of weights up to which a GPU's step takes twice as many tokens: small models compute them fast enough.
SMALL_MODEL = 4 << 30


def decide(settings: Settings, files: ModelFiles, rank: int = 0) -> BackendConfig:
    ranks = settings.engine.tensor_parallel
    device = _device(settings)
    dtype = choose_dtype(settings, files.spec, device)
    kind = _kind(settings, device)
    types = _kv_types(settings, dtype, kind)
    scales = _kv_scales(settings, files, types)
    drafts = _drafts(settings, files, kind)
    if drafts is not None and drafts.layers is not None:
        types.check_head_dim(drafts.layers.head_dim, drafts.layers.name)
    config = BackendConfig(
        kind=kind,
        settings=settings,
        files=files,
        context=chosen_context(files.spec, settings.model.context),
        device=device,
        dtype=dtype,
        kv_types=types._replace(static_scales=scales is not None),
        kv_scales=scales,
        limits=_limits(settings, files.spec, device, dtype),
        threads=max(1, (settings.engine.threads or cores()) // ranks),
        drafts=drafts,
        adapter_bytes=_adapter_bytes(settings, kind),
        audit=settings.engine.speculate_audit,
        shard=Shard(rank, ranks),
    )
    _check_deterministic(config)
    return config


def _device(settings: Settings) -> DeviceKind:
    asked = settings.model.device
    if asked == "cpu" or (asked == "auto" and not has_driver()):
        return "cpu"
    if asked == "cuda":
        require_torch("device cuda", "device")
    elif not has_torch():
        logger.warning("computing on the CPU: the GPU of this machine needs torch (%s)", INSTALL_TORCH)
        return "cpu"
    if _torch_has_cuda():
        return "cuda"
    if asked == "cuda":
        raise InvalidSetting(
            "device: there is no CUDA device here, or this torch was built without CUDA", param="device"
        )
    return "cpu"


def _torch_has_cuda() -> bool:
    return bool(import_torch(wake_device).has_cuda())


def import_torch(wake: Callable[[], None] | None) -> ModuleType:
    """`torch_process`, which imports torch: a second or more."""
    with process_tuning.fast_import(wake):
        return importlib.import_module("penstock.startup.torch_process")


def choose_dtype(settings: Settings, spec: ModelSpec, device: DeviceKind) -> Dtype:
    """auto: float32 on a CPU; elsewhere the checkpoint's own type, or bfloat16 if that is float32."""
    name = settings.model.dtype
    if name != "auto":
        return name
    if device == "cpu":
        return "float32"
    return "bfloat16" if spec.dtype == "float32" else cast(Dtype, spec.dtype)


def _kind(settings: Settings, device: DeviceKind) -> BackendKind:
    """On a CPU the native kernels, wherever they were built, unless the settings name a dtype of torch's or split the
    model."""
    whole = settings.engine.tensor_parallel == 1
    native = device == "cpu" and whole and settings.model.dtype == "auto" and library.load() is not None
    quantize = settings.model.quantize
    if quantize and device == "cpu" and not native:
        raise InvalidSetting(
            "quantize: on a CPU only the native kernels compute with quantized weights: they need dtype auto, and a "
            "C++ compiler when penstock is installed",
            param="quantize",
        )
    if quantize == "fp8" and native:
        raise InvalidSetting(
            "quantize: fp8 is for GPUs; on a CPU int8 takes as many bytes, and loses less", param="quantize"
        )
    if native or device == "cuda":
        return "native" if native else "cuda"
    if settings.model.dtype != "auto":
        require_torch(f"dtype {settings.model.dtype}", "dtype")
    if not whole:
        require_torch("tensor_parallel", "tensor_parallel")
    require_torch("a CPU engine without the native kernels, which a C++ compiler builds when penstock is installed,")
    return "torch"


def _drafts(settings: Settings, files: ModelFiles, kind: BackendKind) -> DraftSource | None:
    """Reads what drafts tokens, so that all that is wrong with it is said before the model is loaded."""
    how, split = settings.engine.speculate, kind == "cuda" and settings.engine.tensor_parallel > 1
    if how == "off" or (how == "auto" and split):
        return None
    if split:
        raise InvalidSetting(
            f"speculate: {how} does not run with tensor_parallel on GPUs yet, set off or auto", param="speculate"
        )
    if kind == "torch" and how not in ("auto", "lookup"):
        raise InvalidSetting(
            f"speculate: {how} needs the native CPU kernels (dtype auto, no tensor_parallel) or a GPU; this engine can "
            "draft by lookup",
            param="speculate",
        )
    return prepare_drafts("lookup" if how == "auto" else how, files)


def _adapter_bytes(settings: Settings, kind: BackendKind) -> int:
    """Of each rank. 0: sequences with an adapter are refused."""
    asked = settings.cache.adapter_memory
    if asked is None and kind == "cuda" and not settings.model.adapters:
        return 0  # all memory is for the KV cache, and no graphs for adapters are captured
    if asked is not None and asked != "auto":
        return parse_bytes(asked, "adapter_memory")
    if kind == "cuda":
        return parse_bytes(GPU_ADAPTER_MEMORY, "adapter_memory")
    return parse_bytes(ADAPTER_MEMORY, "adapter_memory") // settings.engine.tensor_parallel


def _kv_types(settings: Settings, dtype: Dtype, kind: BackendKind) -> KvTypes:
    name = settings.cache.kv_dtype
    if name == "auto":
        return kv_types("float16" if kind == "native" else dtype)
    types = kv_types(name)
    names = {types.keys, types.values}
    if kind == "cuda":
        if others := names - {*QUANTIZED, dtype}:
            raise InvalidSetting(
                f"kv_dtype: on a GPU, keys and values of {others.pop()} need a model of that type, and this one is "
                f"computed in {dtype}; {', '.join(QUANTIZED)} go with all",
                param="kv_dtype",
            )
        return types._replace(on_gpu=True)
    if "fp8" in names:
        raise InvalidSetting(
            "kv_dtype: fp8 needs a GPU; on a CPU take int8, which takes as many bytes and is more precise",
            param="kv_dtype",
        )
    if kind == "native" and "bfloat16" in names:
        raise InvalidSetting("kv_dtype: the native CPU kernels have float16 instead of bfloat16", param="kv_dtype")
    if kind == "torch" and name != dtype:
        raise InvalidSetting(
            f"kv_dtype: {name} needs a GPU or the native CPU kernels (device cpu, dtype auto, no tensor_parallel); "
            f"elsewhere the KV cache has the type the model computes in, which is {dtype}",
            param="kv_dtype",
        )
    return types


def _kv_scales(settings: Settings, files: ModelFiles, types: KvTypes) -> list[KvScales] | None:
    """The checkpoint's own, where the KV cache is what it has them for."""
    quantization = files.spec.quantization
    if "fp8" not in types or quantization is None or quantization.kv_scheme != "fp8":
        return None
    return None if settings.model.load_format == "dummy" else read_kv_scales(files.weights, files.spec.num_layers)


def _limits(settings: Settings, spec: ModelSpec, device: DeviceKind, dtype: Dtype) -> StepLimits:
    schedule = settings.schedule
    tokens, sequences, lookahead = CPU_LIMITS if device == "cpu" else GPU_LIMITS
    if device == "cuda" and parameter_bytes(spec, dtype) <= SMALL_MODEL:
        tokens *= 2
    sequences = schedule.max_sequences or min(sequences, schedule.step_tokens or sequences)
    tokens = schedule.step_tokens or max(tokens, sequences)
    return StepLimits(tokens, sequences, lookahead if schedule.lookahead is None else schedule.lookahead)


def _check_deterministic(config: BackendConfig) -> None:
    if not config.settings.engine.deterministic:
        return
    if config.kind == "cuda" and config.shard.world > 1:
        raise InvalidSetting(
            "deterministic: the sums over the GPUs of tensor_parallel have no fixed order, set one of the two",
            param="deterministic",
        )
    if config.kind == "cuda" and config.adapter_bytes > 0:
        raise InvalidSetting("deterministic: adapters on GPUs do not run with it yet", param="deterministic")
    model, has_codes = config.settings.model, config.spec.quantization or config.files.format == "gguf"
    if config.kind == "cuda" and (model.quantize or (has_codes and model.load_format != "dummy")):
        raise InvalidSetting(
            "deterministic: quantized weights on a GPU do not run with it yet, only models of 16 or 32 bits",
            param="deterministic",
        )
    if config.kind == "cuda" and {*QUANTIZED} & {*config.kv_types}:
        raise InvalidSetting(
            f"deterministic: a KV cache of {config.kv_types} on a GPU does not run with it yet, set kv_dtype auto",
            param="deterministic",
        )
    if config.kind == "torch":
        raise InvalidSetting(
            "deterministic: torch's products on a CPU depend on how many tokens a step has; the native CPU kernels "
            "(device cpu, dtype auto, no tensor_parallel, and a C++ compiler when penstock is installed) always give "
            "the same tokens, and so does a GPU with this setting",
            param="deterministic",
        )
