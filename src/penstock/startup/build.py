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
from penstock.flow.ranks import RankLogits, RankPages, RankStep
from penstock.flow.transfer import TransferSetup
from penstock.forward.backend import BackendConfig, BackendKind, BuiltBackend, DeviceKind, StepLimits
from penstock.forward.model_trace import lazy_trace
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache
from penstock.kernels.arrays import Dtype
from penstock.kernels.cpu import library
from penstock.model import parameter_bytes
from penstock.model.weights.place import Shard
from penstock.schedule import Scheduler
from penstock.schedule.queue_policy import PolicyOptions
from penstock.schedule.speculation import CreditSpeculation
from penstock.settings import Settings, parse_bytes
from penstock.speculate.proposer import DraftSource
from penstock.speculate.registry import prepare as prepare_drafts
from penstock.startup import process_tuning
from penstock.startup.gpu_warmup import wake_device
from penstock.startup.preflight import has_driver
from penstock.store.files import ModelFiles
from penstock.store.kv_types import KvTypes, kv_types
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
DRAFTING: tuple[BackendKind, ...] = ("native", "torch")  # backends that draft tokens
CPU_LIMITS = StepLimits(step_tokens=512, max_sequences=64, lookahead=0)
GPU_LIMITS = StepLimits(step_tokens=8192, max_sequences=512, lookahead=1)
ADAPTER_MEMORY = "1GiB"  # a hundred adapters of rank 16 for a model of 135 million parameters
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
    if transfer is not None and config.kind != "native":
        raise InvalidSetting(
            "prefill_replicas: only the native CPU kernels exchange KV blocks (device cpu, dtype auto, and a C++ "
            "compiler when penstock is installed)",
            param="prefill_replicas",
        )
    if config.shard.world > 1:
        from penstock.engine.rank_group import RankGroup

        group = RankGroup(settings, config.shard.world)
        config = replace(config, meeting=str(group.folder), followers=group)
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


def follow_rank_0(
    settings: Settings,
    files: ModelFiles,
    rank: int,
    meeting: str,
    loaded: Callable[[int], RankPages],
    steps: Iterable[RankStep | RankLogits],
) -> None:
    """The work of any other rank of a tensor-parallel group: see `forward.torch_backend`."""
    config = replace(_decide(settings, files, rank), meeting=meeting)
    _import_torch(None)
    importlib.import_module(BACKENDS[config.kind]).follow_rank_0(config, loaded, steps)


def _say_unused_scales(config: BackendConfig) -> None:
    quantization = config.spec.quantization
    if quantization is None or not quantization.kv_scheme:
        return
    logger.info(
        "the checkpoint's static scales for a KV cache of %s (k_scale, v_scale) are not used: the KV cache is %s%s",
        quantization.kv_scheme,
        config.kv_types,
        ", with a scale for each head of each token" if "int8" in config.kv_types else "",
    )


def _decide(settings: Settings, files: ModelFiles, rank: int = 0) -> BackendConfig:
    ranks = settings.engine.tensor_parallel
    device = _device(settings)
    dtype = choose_dtype(settings, files.spec, device)
    kind = _kind(settings, device)
    return BackendConfig(
        kind=kind,
        settings=settings,
        files=files,
        context=chosen_context(files.spec, settings.model.context),
        device=device,
        dtype=dtype,
        kv_types=_kv_types(settings, dtype, kind),
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
    how = settings.engine.speculate
    if how == "off" or (how == "auto" and kind not in DRAFTING):
        return None
    if kind not in DRAFTING:
        raise InvalidSetting(f"speculate: {how} does not run on a GPU yet, set off or auto", param="speculate")
    if kind == "torch" and how not in ("auto", "lookup"):
        raise InvalidSetting(
            f"speculate: {how} needs the native CPU kernels (dtype auto); this engine can draft by lookup",
            param="speculate",
        )
    return prepare_drafts("lookup" if how == "auto" else how, files)


def _adapter_bytes(settings: Settings, kind: BackendKind) -> int:
    """0: sequences with an adapter are refused."""
    asked, alone = settings.cache.adapter_memory, settings.engine.tensor_parallel == 1
    if kind != "cuda" and alone:
        return parse_bytes(asked or ADAPTER_MEMORY, "adapter_memory")
    if asked is not None:
        where = "with tensor_parallel" if kind != "cuda" else "on a GPU"
        raise InvalidSetting(f"adapter_memory: adapters do not run {where} yet", param="adapter_memory")
    return 0


def _kv_types(settings: Settings, dtype: Dtype, kind: BackendKind) -> KvTypes:
    name = settings.cache.kv_dtype
    if name == "auto":
        return kv_types("float16" if kind == "native" else dtype)
    if kind != "native" and name != dtype:
        raise InvalidSetting(
            f"kv_dtype: {name} needs the native CPU kernels (device cpu, dtype auto); elsewhere the KV cache has the "
            f"type the model computes in, which is {dtype}",
            param="kv_dtype",
        )
    return kv_types(name)


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
        speculation=None if built.costs is None else CreditSpeculation(built.costs),
        adapters=built.adapters,
    )
