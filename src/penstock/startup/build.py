"""The start of an engine: build the backend that the settings decide on, add scheduler and loop.

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
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.cache import CacheManager, EvictionHistory
from penstock.cache.kv_events import KvEventLog
from penstock.engine.loop import EngineLoop
from penstock.errors import InvalidSetting
from penstock.flow.transfer import TransferSetup
from penstock.forward.backend import BackendConfig, BackendKind, BuiltBackend
from penstock.forward.model_trace import lazy_trace
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache
from penstock.kernels.cpu import library
from penstock.schedule import Scheduler
from penstock.schedule.queue_policy import PolicyOptions
from penstock.schedule.speculation import CreditSpeculation
from penstock.settings import Settings
from penstock.startup.decide import decide, import_torch
from penstock.startup.preflight import check_gpus
from penstock.store.files import ModelFiles
from penstock.store.kv_types import QUANTIZED

if TYPE_CHECKING:
    from penstock.engine.kv_publisher import KvPublisher
    from penstock.engine.transfer.block_transfers import BlockTransfers
    from penstock.forward.rank_forward import Leader

logger = logging.getLogger(__name__)

# Modules with a function `build(BackendConfig, GrammarCache, EndPhase) -> BuiltBackend`.
BACKENDS: dict[BackendKind, str] = {
    "torch": "penstock.forward.torch_backend",
    "native": "penstock.forward.native_backend",
    "cuda": "penstock.forward.cuda_startup",
}
# What begins when a phase of a backend's `build` ends.
NEXT_PHASE = {
    "kernels noted": "loading weights",
    "weights": "preparing the first step",
    "kernels compiled": "warming up",
    "cache": "capturing CUDA graphs",
}


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
    config = decide(settings, files)
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
        import_torch(None)
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
        check_gpus(world, import_torch(None).gpu_count())
    group = RankGroup(config.settings, world, have_gpus=has_gpu)
    return replace(config, meeting=str(group.folder), followers=group)


def follow_rank_0(
    settings: Settings,
    files: ModelFiles,
    rank: int,
    meeting: str,
    leader: Leader,
) -> None:
    """What any other rank of a tensor-parallel group does: see `forward.torch_backend` and `forward.cuda_startup`."""
    config = replace(decide(settings, files, rank), meeting=meeting)
    import_torch(None)
    importlib.import_module(BACKENDS[config.kind]).follow_rank_0(config, leader)


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
    memory = KvMemory(built.kv_memory, layout, cache.allow_holdings(size.context, config.limits.step_tokens))
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
        "adapter_bytes": config.adapter_bytes * config.shard.world,
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
