"""The start of an engine: what is to be built is decided, loaded and put together. Every "auto" becomes a value here.

    settings ──decide──► Decided ──load──► Decoder ──size──► pages, runner ──► EngineLoop, and facts about all of it

Only the process that runs the engine imports this: torch comes with it. Triton, which only CUDA builds of torch have,
is imported where a CUDA device is at hand.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from penstock.cache import CacheManager, Recall
from penstock.engine.loop import EngineLoop
from penstock.errors import InvalidSetting
from penstock.flow import Runner
from penstock.forward.memory import CacheSize, allocate_native_pages, allocate_pages, check_weights, size_cache
from penstock.forward.native_runner import NativeRunner
from penstock.forward.runner import ModelRunner
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache
from penstock.kernels.cpu import library
from penstock.kernels.cpu.program import Pool
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import Decoder, DummySource, Packing, choose_dtype, load, open_source, packed_bytes, weight_bytes
from penstock.schedule import Scheduler
from penstock.settings import Settings
from penstock.startup import process_tuning
from penstock.startup.gpu_warmup import wait_awake
from penstock.store.files import ModelFiles
from penstock.store.spec import ModelSpec
from penstock.store.spec_check import chosen_context
from penstock.system.resources import cores

logger = logging.getLogger(__name__)

KV_DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


class Laps:
    """Seconds that the parts of a start take."""

    def __init__(self, start: float) -> None:
        self.start = self._last = start
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._last = round(now - self._last, 3), now

    @property
    def total(self) -> float:
        return time.monotonic() - self.start


class Limits(NamedTuple):
    """How much one step takes on."""

    step_tokens: int
    max_sequences: int
    lookahead: int


CPU_LIMITS = Limits(step_tokens=512, max_sequences=64, lookahead=0)
GPU_LIMITS = Limits(step_tokens=8192, max_sequences=512, lookahead=1)
# Bytes of weights up to which a GPU's step takes twice as many tokens: they are computed in less time all the same.
SMALL_MODEL = 4 << 30


@dataclass(frozen=True, slots=True)
class Decided:
    """What is to be built: every "auto" of the settings as the value it stands for here."""

    files: ModelFiles
    context: int  # most tokens of a sequence; where none was asked for, short memory makes it less: CacheSize.context
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    native: bool  # whether the native CPU kernels compute
    limits: Limits
    threads: int

    @property
    def spec(self) -> ModelSpec:
        return self.files.spec

    @property
    def kernels(self) -> str:
        """In a word, which ones compute."""
        return f"native {library.isa()}" if self.native else "torch" if self.device.type == "cpu" else "triton"


class Built(NamedTuple):
    """What there is once the weights are loaded."""

    runner: Runner
    model: Decoder
    size: CacheSize


def engine_loop(
    settings: Settings, files: ModelFiles, begun: float, secret: bytes | None
) -> tuple[EngineLoop, dict[str, Any]]:
    """Load the model and put an engine around it; the facts say what was decided and how long it took since `begun`,
    by `time.monotonic`. `secret` is the cache's."""
    laps = Laps(begun)
    laps.end("imports")
    decided = _decide(settings, files)
    laps.end("decisions")
    if decided.kernels == "torch":
        process_tuning.check_torch_threads(settings.engine.threads)
    # What the native kernels leave to torch is small, and its threads would compete with the pool's.
    process_tuning.set_torch_threads(1 if decided.native else decided.threads)
    grammars = GrammarCache(Compiler(files.tokenizer, files.spec.vocab_size, files.spec.end_tokens))
    build = _cuda_runner if decided.device.type == "cuda" else _cpu_runner
    built = build(settings, decided, grammars, laps)
    loop = EngineLoop(_scheduler(settings, decided, built.size, secret), built.runner, grammars)
    laps.end("rest")
    logger.debug("engine built in %.1f s: %s", laps.total, laps.seconds)
    return loop, _facts(decided, built, laps)


# --- what is decided


def _decide(settings: Settings, files: ModelFiles) -> Decided:
    device = _device(settings)
    dtype = choose_dtype(settings.model.dtype, files.spec, device)
    # Wherever the native kernels were built and no type of torch's was asked for.
    native = device.type == "cpu" and settings.model.dtype == "auto" and library.load() is not None
    return Decided(
        files=files,
        context=chosen_context(files.spec, settings.model.context),
        device=device,
        dtype=dtype,
        kv_dtype=_kv_dtype(settings, dtype, native),
        native=native,
        limits=_limits(settings, files.spec, device, dtype),
        threads=settings.engine.threads or cores(),
    )


def _device(settings: Settings) -> torch.device:
    kind = settings.model.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidSetting(
            "device: there is no CUDA device here, or this torch was built without CUDA", param="device"
        )
    return torch.device(kind)


def _kv_dtype(settings: Settings, dtype: torch.dtype, native: bool) -> torch.dtype:
    name = settings.cache.kv_dtype
    if name == "auto":
        return torch.float16 if native else dtype
    asked = KV_DTYPES[name]
    if not native and asked != dtype:
        raise InvalidSetting(
            f"kv_dtype: without the native CPU kernels the KV cache has the type the model computes in, which is "
            f"{_name(dtype)}",
            param="kv_dtype",
        )
    return asked


def _limits(settings: Settings, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> Limits:
    asked = settings.schedule
    tokens, sequences, lookahead = CPU_LIMITS if device.type == "cpu" else GPU_LIMITS
    if device.type == "cuda" and weight_bytes(spec, dtype=dtype, device=device) <= SMALL_MODEL:
        tokens *= 2
    sequences = asked.max_sequences or min(sequences, asked.step_tokens or sequences)
    tokens = asked.step_tokens or max(tokens, sequences)
    return Limits(tokens, sequences, lookahead if asked.lookahead is None else asked.lookahead)


def _facts(decided: Decided, built: Built, laps: Laps) -> dict[str, Any]:
    limits, size = decided.limits, built.size
    return {
        "model": decided.files.name,
        "pid": os.getpid(),
        "device": str(decided.device),
        "dtype": _name(decided.dtype),
        "kv_dtype": _name(decided.kv_dtype),
        "kernels": decided.kernels,
        "context": size.context,
        "weights_bytes": built.model.num_bytes,
        "kv_bytes": size.num_bytes,
        "block_size": size.block_size,
        "kv_tokens": (size.blocks[0] - 1) * size.block_size,
        "max_sequences": limits.max_sequences,
        "step_tokens": limits.step_tokens,
        "load_s": laps.seconds["weights"],
        "start_s": laps.total,
        "start_parts_s": laps.seconds,
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- what is built


def _scheduler(settings: Settings, decided: Decided, size: CacheSize, secret: bytes | None) -> Scheduler:
    recall = Recall() if settings.observe.events else None
    groups, limits = decided.spec.cache_groups, decided.limits
    return Scheduler(
        CacheManager(groups, size.blocks, size.block_size, settings.cache.prefix_caching, recall, secret),
        step_tokens=limits.step_tokens,
        max_sequences=limits.max_sequences,
        max_waiting=settings.schedule.max_waiting,
        policy=settings.schedule.policy,
        lookahead=limits.lookahead,
        context=size.context,
        recorded=settings.observe.events,
    )


def _cpu_runner(settings: Settings, decided: Decided, grammars: GrammarCache, laps: Laps) -> Built:
    process_tuning.freeze_startup_objects()
    model = _load(settings, decided)
    laps.end("weights")
    size = _size(settings, decided)
    context, sequences = size.context, decided.limits.max_sequences
    runner: Runner
    if decided.native:
        runner = NativeRunner(
            model,
            Pool(decided.threads),
            allocate_native_pages(decided.spec, size, decided.kv_dtype),
            context=context,
            max_sequences=sequences,
            step_tokens=decided.limits.step_tokens,
            grammars=grammars,
        )
    else:
        pages = allocate_pages(decided.spec, size, decided.kv_dtype, decided.device)
        runner = ModelRunner(
            model, TorchOperations(), pages, context=context, max_sequences=sequences, grammars=grammars
        )
    return Built(runner, model, size)


def _cuda_runner(settings: Settings, decided: Decided, grammars: GrammarCache, laps: Laps) -> Built:
    """Kernels are compiled by other processes while the weights are loaded."""
    from penstock.forward.warm_up import Sizes, capture, compile_ahead, rehearse
    from penstock.kernels.cuda.precompile import Ahead
    from penstock.kernels.cuda_ops import CudaOperations

    laps.end("triton")
    process_tuning.freeze_startup_objects()  # before compilation, which leaves much to be collected
    spec, context, limits = decided.spec, decided.context, decided.limits
    sizes = Sizes(settings.cache.block_size, context, limits.step_tokens, limits.max_sequences)
    with Ahead(decided.threads, ready=wait_awake) as ahead:
        compile_ahead(ahead, spec, sizes, dtype=decided.dtype, device=decided.device)
        laps.end("kernels noted")
        model = _load(settings, decided)
        process_tuning.set_torch_threads(1)  # what is left to the host is done before others are awake
        laps.end("weights")
    laps.end("kernels compiled")
    recorder = rehearse(model, sizes, dtype=decided.dtype)
    laps.end("rehearsal")
    size = _size(settings, decided)
    pages = allocate_pages(spec, size, decided.kv_dtype, decided.device)
    runner = ModelRunner(
        model,
        CudaOperations(),
        pages,
        context=size.context,
        max_sequences=limits.max_sequences,
        grammars=grammars,
    )
    laps.end("cache")
    capture(runner, sizes, recorder)
    laps.end("graphs")
    return Built(runner, model, size)


def _load(settings: Settings, decided: Decided) -> Decoder:
    files, spec, device, dtype = decided.files, decided.spec, decided.device, decided.dtype
    packing = Packing(settings.model.quantize) if decided.native else None
    if settings.model.quantize and packing is None:
        raise InvalidSetting(
            "quantize: only the native CPU kernels compute with quantized weights: they need device cpu, dtype auto, "
            "and a C++ compiler when penstock is installed",
            param="quantize",
        )
    dummy = settings.model.load_format == "dummy"
    source = DummySource(device) if dummy else open_source(files.weights, files.format)
    needed = packed_bytes(spec, source, packing) if packing else weight_bytes(spec, dtype=dtype, device=device)
    check_weights(needed, settings.cache, device)
    return load(spec, source, dtype=dtype, device=device, context=decided.context, packing=packing)


def _size(settings: Settings, decided: Decided) -> CacheSize:
    return size_cache(
        decided.spec,
        settings.cache,
        dtype=decided.kv_dtype,
        device=decided.device,
        context=settings.model.context,
        max_sequences=decided.limits.max_sequences,
        step_tokens=decided.limits.step_tokens,
    )
