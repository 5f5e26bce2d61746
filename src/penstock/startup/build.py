"""The start of an engine: resolve every "auto" of the settings, build the backend, add scheduler and loop.

    settings ──decide──► BackendConfig ──build──► BuiltBackend ──► EngineLoop, and facts about all of it

A backend's module is imported when it is chosen: only the native one does without torch. So are those of processes and
sockets: an engine in its user's process does without ZeroMQ.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from penstock.cache import CacheManager, EvictionHistory
from penstock.cache.kv_events import KvEventLog
from penstock.engine.loop import EngineLoop
from penstock.errors import InvalidSetting
from penstock.flow.ranks import RankWork
from penstock.flow.transfer import TransferSetup
from penstock.forward.backend import BackendConfig, BackendKind, BuiltBackend, DeviceKind, StepLimits
from penstock.forward.model_trace import lazy_trace
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache
from penstock.kernels.arrays import Dtype
from penstock.kernels.cpu import library
from penstock.model import parameter_bytes
from penstock.model.weights.kv_scales import KvScales, read_kv_scales
from penstock.model.weights.place import Shard
from penstock.schedule import Scheduler
from penstock.schedule.queue_policy import PolicyOptions
from penstock.schedule.speculation import CreditSpeculation
from penstock.settings import Settings, parse_bytes
from penstock.speculate.proposer import DraftSource
from penstock.speculate.registry import prepare as prepare_drafts
from penstock.startup import process_tuning
from penstock.startup.gpu_warmup import wake_device
from penstock.startup.preflight import check_gpus, has_driver
from penstock.store.files import ModelFiles
from penstock.store.kv_types import QUANTIZED, KvTypes, kv_types
from penstock.store.spec import ModelSpec
from penstock.store.spec_check import chosen_context
from penstock.system.extras import INSTALL_TORCH, has_torch, require_torch
from penstock.system.resources import cores

if TYPE_CHECKING:
    from penstock.engine.kv_publisher import KvPublisher
    from penstock.engine.transfer.block_transfers import BlockTransfers

logger = logging.getLogger(__name__)

# Modules with a function `build(BackendConfig, GrammarCache, EndPhase) -> BuiltBackend`.
BACKENDS: dict[BackendKind, str] = {
    "torch": "penstock.forward.torch_backend",
    "native": "penstock.forward.native_backend",
    "cuda": "penstock.forward.cuda_startup",
}
CPU_LIMITS = StepLimits(step_tokens=512, max_sequences=64, lookahead=0)
GPU_LIMITS = StepLimits(step_tokens=8192, max_sequences=512, lookahead=1)
ADAPTER_MEMORY = "1GiB"  # a hundred adapters of rank 16 for a model of 135 million parameters
GPU_ADAPTER_MEMORY = "4GiB"  # 51 of rank 16 for one of 8 billion
# What begins when a phase of a backend's `build` ends.
NEXT_PHASE = {
    "kernels noted": "loading weights",
    "weights": "preparing the first step",
    "kernels compiled": "warming up",
    "cache": "capturing CUDA graphs",
}
# Bytes of weights up to which a GPU's step takes twice as many tokens: small models compute them fast enough.
SMALL_MODEL = 4 << 30


class PhaseTimer:
    """Seconds that the phases of a start take."""

    def __init__(self, start: float, report: Callable[[str], None] | None = None) -> None:
        """`report` is told what begins, in words for people."""
        self.start = self._last = start
        self.seconds: dict[str, float] = {}
        self._report = report

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._last = round(now - self._last, 3), now
        if name in NEXT_PHASE:
            self.begin(NEXT_PHASE[name])

    def begin(self, phase: str) -> None:
        if self._report is not None:
            self._report(phase)

    @property
    def total(self) -> float:
        return time.monotonic() - self.start


def engine_loop(
    settings: Settings,
    files: ModelFiles,
    begun: float,
    secret: bytes | None,
    report: Callable[[str], None] | None = None,
    transfer: TransferSetup | None = None,
) -> tuple[EngineLoop, dict[str, Any]]:
    """Load the model and put an engine around it; the facts say what was decided and how long it took since `begun`,
    by `time.monotonic`. `secret` is the cache's. `report` is told each phase as it begins. `transfer`: how it exchanges
    KV blocks with other engines."""
    timer = PhaseTimer(begun, report)
    config = _decide(settings, files)
    _check_deterministic(config)
    if transfer is not None and config.kind != "native":
        raise InvalidSetting(
            "prefill_replicas: only the native CPU kernels exchange KV blocks (device cpu, dtype auto, and a C++ "
            "compiler when penstock is installed)",
            param="prefill_replicas",
        )
    if config.shard.world > 1:
        config = _with_followers(config)
    _say_unused_scales(config)
    if config.kind == "torch":
        _import_torch(None)
    timer.end("imports")
    timer.begin("preparing kernels" if config.kind == "cuda" else "loading weights")
    grammars = GrammarCache(Compiler(files.tokenizer, files.spec.vocab_size, files.spec.end_tokens))
    try:
        built: BuiltBackend = importlib.import_module(BACKENDS[config.kind]).build(config, grammars, timer.end)
    except BaseException:
        if config.followers is not None:
            config.followers.close()
        raise
    trace = None if built.tracer is None else lazy_trace(built.tracer)
    events = _kv_events(config, built)
    publisher = None if events is None else _publisher(config, events)
    scheduler = _scheduler(config, built, secret, events)
    transfers = None if transfer is None else _transfers(config, built, scheduler, transfer, secret)
    loop = EngineLoop(scheduler, built.backend, grammars, trace, built.adapters, publisher, transfers)
    timer.end("rest")
    logger.debug("engine built in %.1f s: %s", timer.total, timer.seconds)
    return loop, _facts(config, built, timer) | ({} if transfers is None else transfers.facts)


def _with_followers(config: BackendConfig) -> BackendConfig:
    """The other ranks of a group start, each with a GPU of its own if this one has one."""
    from penstock.engine.rank_group import RankGroup

    has_gpu, world = config.kind == "cuda", config.shard.world
    if has_gpu:
        check_gpus(world, _import_torch(None).gpu_count())
    group = RankGroup(config.settings, world, have_gpus=has_gpu)
    return replace(config, meeting=str(group.folder), followers=group)


def follow_rank_0(
    settings: Settings,
    files: ModelFiles,
    rank: int,
    meeting: str,
    loaded: Callable[[int], None],
    work: Iterable[RankWork],
) -> None:
    """What any other rank of a tensor-parallel group does: see `forward.torch_backend` and `forward.cuda_startup`."""
    config = replace(_decide(settings, files, rank), meeting=meeting)
    _import_torch(None)
    importlib.import_module(BACKENDS[config.kind]).follow_rank_0(config, loaded, work)


def _say_unused_scales(config: BackendConfig) -> None:
    quantization = config.spec.quantization
    if quantization is None or not quantization.kv_scheme or config.kv_scales is not None:
        return
    logger.info(
        "the checkpoint's static scales for a KV cache of %s (k_scale, v_scale) are not used: the KV cache is %s%s",
        quantization.kv_scheme,
        config.kv_types,
        ", with scales for each head of each token" if {*QUANTIZED} & {*config.kv_types} else "",
    )


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


def _decide(settings: Settings, files: ModelFiles, rank: int = 0) -> BackendConfig:
    ranks = settings.engine.tensor_parallel
    device = _device(settings)
    dtype = choose_dtype(settings, files.spec, device)
    kind = _kind(settings, device)
    types = _kv_types(settings, dtype, kind)
    scales = _kv_scales(settings, files, types)
    return BackendConfig(
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
        drafts=_drafts(settings, files, kind),
        adapter_bytes=_adapter_bytes(settings, kind),
        audit=settings.engine.speculate_audit,
        shard=Shard(rank, ranks),
    )


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
    return bool(_import_torch(wake_device).has_cuda())


def _import_torch(wake: Callable[[], None] | None) -> ModuleType:
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
            f"speculate: {how} needs the native CPU kernels (dtype auto) or a GPU; this engine can draft by lookup",
            param="speculate",
        )
    return prepare_drafts("lookup" if how == "auto" else how, files)


def _adapter_bytes(settings: Settings, kind: BackendKind) -> int:
    """0: sequences with an adapter are refused."""
    asked = settings.cache.adapter_memory
    if settings.engine.tensor_parallel > 1:
        if asked not in (None, "auto"):
            raise InvalidSetting("adapter_memory: adapters do not run with tensor_parallel yet", param="adapter_memory")
        return 0
    if asked is None and kind == "cuda" and not settings.model.adapters:
        return 0  # all memory is for the KV cache, and no graphs for adapters are captured
    auto = GPU_ADAPTER_MEMORY if kind == "cuda" else ADAPTER_MEMORY
    return parse_bytes(auto if asked in (None, "auto") else asked, "adapter_memory")


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
            f"kv_dtype: {name} needs a GPU or the native CPU kernels (device cpu, dtype auto); elsewhere the KV cache "
            f"has the type the model computes in, which is {dtype}",
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


def _transfers(
    config: BackendConfig, built: BuiltBackend, scheduler: Scheduler, setup: TransferSetup, secret: bytes | None
) -> BlockTransfers:
    from penstock.engine.transfer.block_transfers import BlockTransfers, KvMemory

    assert built.kv_memory is not None
    assert secret is not None
    size, cache = built.cache, scheduler.cache
    pairs = zip(config.spec.cache_groups, size.block_bytes, strict=True)
    groups = [f"window {group.window or 'none'}: {num_bytes} bytes" for group, num_bytes in pairs]
    layout = (
        f"{config.files.name}, weights of {built.weights_bytes} bytes, {config.kv_types} in blocks of "
        f"{size.block_size} tokens ({', '.join(groups)})"
    )
    cache.allow_holdings(size.context, config.limits.step_tokens)
    memory = KvMemory(built.kv_memory, layout)
    return BlockTransfers(setup, secret, cache, memory, reserve=lambda: scheduler.stats()["running"])


def _facts(config: BackendConfig, built: BuiltBackend, timer: PhaseTimer) -> dict[str, Any]:
    limits, size = config.limits, built.cache
    return {
        "model": config.files.name,
        "pid": os.getpid(),
        "host": platform.node(),
        "device": config.device,
        "dtype": config.dtype,
        "kv_dtype": str(config.kv_types),
        "kernels": _kernels(config.kind),
        "deterministic": config.kind == "native" or config.settings.engine.deterministic,
        "weights": _weights(config, built.keeps_codes),
        "tensor_parallel": config.shard.world,
        "context": size.context,
        "weights_bytes": built.weights_bytes,
        "adapter_bytes": config.adapter_bytes,
        "kv_bytes": size.num_bytes * config.shard.world,
        "block_size": size.block_size,
        "prefix_caching": config.settings.cache.prefix_caching,
        "kv_tokens": (size.blocks[0] - 1) * size.block_size,
        "max_sequences": limits.max_sequences,
        "step_tokens": limits.step_tokens,
        "speculation": _speculation(config),
        "load_s": timer.seconds["weights"],
        "start_s": timer.total,
        "start_parts_s": timer.seconds,
    }


def _speculation(config: BackendConfig) -> str:
    how = config.settings.engine.speculate
    return "off" if config.drafts is None else "lookup" if how == "auto" else how


def _kernels(kind: BackendKind) -> str:
    return f"native {library.isa()}" if kind == "native" else "triton" if kind == "cuda" else "torch"


def _weights(config: BackendConfig, keeps_codes: bool) -> str:
    """What matrices are kept as, for people: "int4", "Q4_K_M", "awq int4", "bfloat16"."""
    if config.settings.model.quantize:
        return config.settings.model.quantize
    return config.spec.weights if config.kind == "native" or keeps_codes else config.dtype


def _kv_events(config: BackendConfig, built: BuiltBackend) -> KvEventLog | None:
    """None: no other router is told of the cache."""
    if config.settings.cache.kv_events is None or not config.settings.cache.prefix_caching:
        return None
    return KvEventLog(built.cache.block_size, "GPU" if config.kind == "cuda" else "CPU")


def _publisher(config: BackendConfig, events: KvEventLog) -> KvPublisher:
    from penstock.engine.kv_publisher import KvPublisher

    return KvPublisher(config.settings.cache.kv_events or "", events)


def _scheduler(
    config: BackendConfig, built: BuiltBackend, secret: bytes | None, events: KvEventLog | None
) -> Scheduler:
    settings, size = config.settings, built.cache
    history = EvictionHistory() if settings.observe.events else None
    groups, limits = config.spec.cache_groups, config.limits
    return Scheduler(
        CacheManager(groups, size.blocks, size.block_size, settings.cache.prefix_caching, history, secret, events),
        step_tokens=limits.step_tokens,
        max_sequences=limits.max_sequences,
        max_waiting=settings.schedule.max_waiting,
        max_waiting_per_tenant=settings.schedule.max_waiting_per_tenant,
        policy=settings.schedule.policy,
        options=PolicyOptions(settings.schedule.ageing_s, settings.schedule.tier_targets_s),
        lookahead=limits.lookahead,
        context=size.context,
        recorded=settings.observe.events,
        speculation=None if built.costs is None else CreditSpeculation(built.costs, plans_ahead=limits.lookahead > 0),
        adapters=built.adapters,
    )
