"""The composition root: the only module that knows all the others, and where "auto" becomes a decision.

Imports of torch and of the engine's insides stay inside the functions that need them: the frontend of an isolated
engine never loads them.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock import __version__
from penstock.errors import InvalidSetting, ModelInvalid
from penstock.flow import Engine
from penstock.grammar.checker import Checker
from penstock.kernels.wake import wake_device
from penstock.pipeline import Pipeline
from penstock.prompt.template import ChatTemplate
from penstock.route.replica import Replica, State
from penstock.settings import ObserveSettings, Settings
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec
from penstock.tokenize.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from starlette.types import ASGIApp

    from penstock.engine.loop import EngineLoop
    from penstock.flow import Runner
    from penstock.forward.memory import CacheSize
    from penstock.grammar.library import Grammars
    from penstock.intake.desk import Desk
    from penstock.model import Decoder
    from penstock.observe.metrics import Metrics
    from penstock.observe.spans import Spans
    from penstock.observe.watch import Watch

logger = logging.getLogger(__name__)


def model(settings: Settings, pulling: Progress | None = None) -> ModelFiles:
    return resolve(settings.model.model, progress=pulling, weights=settings.model.load_format != "dummy")


def pipeline(settings: Settings, files: ModelFiles) -> Pipeline:
    tokenizer = Tokenizer.load(files.tokenizer) if files.tokenizer is not None else None
    template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template is not None else None
    length, checker = context(settings, files.spec), _checker(files)
    return Pipeline(files.spec, tokenizer, template, context=length, constraints=checker)


def engine(settings: Settings) -> tuple[Engine, dict[str, Any]]:
    """An engine that is ready, in this process or in its own, and what is to be known about it. Nobody watches it."""
    settings = msgspec.structs.replace(settings, observe=ObserveSettings(events=False))
    if settings.engine.isolate:
        from penstock.engine.process import ProcessEngine

        remote = ProcessEngine(settings)
        return remote, remote.wait_ready()
    from penstock.engine.local import LocalEngine

    loop, facts = engine_loop(settings)
    return LocalEngine(loop), facts


def replica(settings: Settings) -> Replica:
    """An engine process that has been started and will be kept running; it has yet to be waited for."""
    from penstock.engine.process import ProcessEngine

    return Replica(lambda: ProcessEngine(settings))


def server(settings: Settings, files: ModelFiles, replica: Replica) -> tuple[ASGIApp, Desk, Watch | None]:
    from penstock.intake.app import build
    from penstock.intake.desk import Desk
    from penstock.observe.metrics import Metrics

    if files.tokenizer is None:
        raise ModelInvalid(f"{files.name} has no tokenizer, so it cannot be served", param="model")
    tokenizer = Tokenizer.load(files.tokenizer)
    template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template is not None else None
    metrics = Metrics(files.name)
    watch = _watch(settings, tokenizer, replica, metrics) if settings.observe.events else None
    emit = replica.emit = None if watch is None else watch.journal.take
    length, checker = context(settings, files.spec), _checker(files)
    pipeline = Pipeline(files.spec, tokenizer, template, context=length, constraints=checker, emit=emit)
    desk = Desk(
        files,
        pipeline,
        tokenizer,
        replica,
        metrics,
        stall_s=settings.serve.stall_s,
        emit=emit,
        keep_texts=settings.observe.keep_texts,
    )
    return build(desk, settings, watch), desk, watch


def _watch(settings: Settings, tokenizer: Tokenizer, replica: Replica, metrics: Metrics) -> Watch:
    """Whoever listens to the events, and what they are told through."""
    from penstock.observe.gpu import Gpu
    from penstock.observe.history import History
    from penstock.observe.journal import Journal
    from penstock.observe.meter import Meter
    from penstock.observe.slo import Monitor
    from penstock.observe.view import View
    from penstock.observe.watch import Watch
    from penstock.observe.webhook import Webhook

    asked = settings.observe
    meter = Meter(metrics.model)
    spans = _spans(asked.otel_endpoint, metrics.model) if asked.otel_endpoint is not None else None
    journal = Journal(keep_texts=asked.keep_texts, meter=meter, listeners=[spans.closed] if spans is not None else [])
    meter.journal = journal
    if spans is not None:
        spans.journal = journal
    metrics.add(meter)
    history = History(journal)
    listeners = [Webhook(asked.slo_webhook).post] if asked.slo_webhook is not None else []
    monitor = Monitor(journal, history, asked, lambda: replica.state is State.READY, listeners)
    return Watch(journal, history, monitor, View(journal, tokenizer, settings.cache.block_size), Gpu())


def _spans(endpoint: str, model: str) -> Spans:
    from penstock.observe.spans import to_endpoint

    return to_endpoint(model, __version__, endpoint)


def engine_loop(settings: Settings) -> tuple[EngineLoop, dict[str, Any]]:
    """Load the model and put an engine around it; the facts say what was decided and how long it took."""
    laps = _Laps()
    if settings.model.device != "cpu":
        wake_device()
    decided = _decide(settings, laps)
    return _build(settings, decided, laps)


class _Laps:
    """Seconds that the parts of a start take."""

    def __init__(self) -> None:
        self.start = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._last = round(now - self._last, 3), now

    @property
    def total(self) -> float:
        return time.monotonic() - self.start


@dataclass(frozen=True, slots=True)
class _Decided:
    """What is to be built: every "auto" of the settings as the value it stands for here."""

    files: ModelFiles
    context: int
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    native: bool  # whether the native CPU kernels compute
    limits: Limits
    threads: int

    @property
    def spec(self) -> ModelSpec:
        return self.files.spec


def _decide(settings: Settings, laps: _Laps) -> _Decided:
    import torch  # noqa: F401  a second or more

    from penstock.forward.available import cores
    from penstock.model.load import choose_dtype

    laps.end("imports")
    files = model(settings)
    device = _device(settings)
    dtype = choose_dtype(settings.model.dtype, files.spec, device)
    native = _is_native(settings, device)
    laps.end("decisions")
    return _Decided(
        files=files,
        context=context(settings, files.spec),
        device=device,
        dtype=dtype,
        kv_dtype=_kv_dtype(settings, dtype, native),
        native=native,
        limits=_limits(settings, device.type),
        threads=settings.engine.threads or cores(),
    )


def _build(settings: Settings, decided: _Decided, laps: _Laps) -> tuple[EngineLoop, dict[str, Any]]:
    import torch

    from penstock.cache import CacheManager, Recall
    from penstock.engine.loop import EngineLoop
    from penstock.grammar.compiler import Compiler
    from penstock.grammar.library import Grammars
    from penstock.schedule.scheduler import Scheduler

    spec, limits = decided.spec, decided.limits
    # What the native kernels leave to torch is small, and its threads would stand in the pool's way.
    torch.set_num_threads(1 if decided.native else decided.threads)
    grammars = Grammars(Compiler(decided.files.tokenizer, spec.vocab_size, spec.end_tokens))
    build = _cuda_runner if decided.device.type == "cuda" else _cpu_runner
    runner, loaded, size = build(settings, decided, grammars, laps)
    recall = Recall() if settings.observe.events else None
    cache = CacheManager(spec.cache_groups, size.blocks, size.block_size, settings.cache.prefix_caching, recall)
    scheduler = Scheduler(
        cache,
        step_tokens=limits.step_tokens,
        max_sequences=limits.max_sequences,
        max_waiting=settings.schedule.max_waiting,
        policy=settings.schedule.policy,
        lookahead=limits.lookahead,
        context=decided.context,
        recorded=settings.observe.events,
    )
    loop = EngineLoop(scheduler, runner, grammars)
    laps.end("rest")
    logger.debug("engine built in %.1f s: %s", laps.total, laps.seconds)
    return loop, _facts(decided, loaded, size, laps)


def _facts(decided: _Decided, loaded: Decoder, size: CacheSize, laps: _Laps) -> dict[str, Any]:
    limits = decided.limits
    return {
        "model": decided.files.name,
        "pid": os.getpid(),
        "device": str(decided.device),
        "dtype": str(decided.dtype).removeprefix("torch."),
        "kv_dtype": str(decided.kv_dtype).removeprefix("torch."),
        "kernels": _kernels(decided.device, decided.native),
        "context": decided.context,
        "weights_bytes": loaded.num_bytes,
        "kv_bytes": size.num_bytes,
        "block_size": size.block_size,
        "kv_tokens": (size.blocks[0] - 1) * size.block_size,
        "max_sequences": limits.max_sequences,
        "step_tokens": limits.step_tokens,
        "load_s": laps.seconds["weights"],
        "start_s": laps.total,
        "start_parts_s": laps.seconds,
    }


def context(settings: Settings, spec: ModelSpec) -> int:
    """Most tokens a sequence may have."""
    asked = settings.model.context
    if asked is not None and asked > spec.context:
        raise InvalidSetting(
            f"context: {spec.name} was made for {spec.context} tokens, {asked} were asked for", param="context"
        )
    return asked or spec.context


def _checker(files: ModelFiles) -> Checker:
    return Checker(files.tokenizer, files.spec.vocab_size, files.spec.end_tokens)


class Limits(NamedTuple):
    """How much one step takes on."""

    step_tokens: int
    max_sequences: int
    lookahead: int


def _limits(settings: Settings, device: str) -> Limits:
    asked = settings.schedule
    tokens, sequences, lookahead = (512, 64, 0) if device == "cpu" else (8192, 512, 1)
    sequences = asked.max_sequences or min(sequences, asked.step_tokens or sequences)
    tokens = asked.step_tokens or max(tokens, sequences)
    return Limits(tokens, sequences, lookahead if asked.lookahead is None else asked.lookahead)


def _is_native(settings: Settings, device: torch.device) -> bool:
    """Whether the native CPU kernels compute: wherever they were built and no type of torch's was asked for."""
    if device.type != "cpu" or settings.model.dtype != "auto":
        return False
    from penstock.kernels.cpu import library

    return library.load() is not None


def _kernels(device: torch.device, native: bool) -> str:
    """In a word, which kernels compute."""
    from penstock.kernels.cpu import library

    return f"native {library.isa()}" if native else "torch" if device.type == "cpu" else "triton"


def _kv_dtype(settings: Settings, dtype: torch.dtype, native: bool) -> torch.dtype:
    import torch

    name = settings.cache.kv_dtype
    if name == "auto":
        return torch.float16 if native else dtype
    asked: torch.dtype = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}[name]
    if not native and asked != dtype:
        raise InvalidSetting(
            f"kv_dtype: without the native CPU kernels the KV cache has the type the model computes in, which is "
            f"{str(dtype).removeprefix('torch.')}",
            param="kv_dtype",
        )
    return asked


def _load(settings: Settings, decided: _Decided) -> Decoder:
    from penstock.forward.memory import check_weights
    from penstock.model.load import load, open_source, packed_bytes, weight_bytes
    from penstock.model.weights.dummy import DummySource
    from penstock.model.weights.loader import Packing

    files, device, dtype = decided.files, decided.device, decided.dtype
    packing = Packing(settings.model.quantize) if decided.native else None
    if settings.model.quantize and packing is None:
        raise InvalidSetting(
            "quantize: only the native CPU kernels compute with quantized weights: they need device cpu, dtype auto, "
            "and a C++ compiler when penstock is installed",
            param="quantize",
        )
    dummy = settings.model.load_format == "dummy"
    source = DummySource(device) if dummy else open_source(files.weights, files.format)
    spec = files.spec
    needed = packed_bytes(spec, source, packing) if packing else weight_bytes(spec, dtype=dtype, device=device)
    check_weights(needed, device)
    return load(spec, source, dtype=dtype, device=device, context=decided.context, packing=packing)


def _size(settings: Settings, decided: _Decided) -> CacheSize:
    from penstock.forward.memory import size_cache

    return size_cache(
        decided.spec,
        settings.cache,
        dtype=decided.kv_dtype,
        device=decided.device,
        context=decided.context,
        max_sequences=decided.limits.max_sequences,
        step_tokens=decided.limits.step_tokens,
    )


Built = tuple["Runner", "Decoder", "CacheSize"]


def _cpu_runner(settings: Settings, decided: _Decided, grammars: Grammars, laps: _Laps) -> Built:
    from penstock.forward.memory import allocate_native_pages, allocate_pages
    from penstock.forward.native import NativeRunner
    from penstock.forward.runner import ModelRunner
    from penstock.kernels.cpu.program import Pool
    from penstock.kernels.torch_ops import TorchOperations

    loaded = _load(settings, decided)
    laps.end("weights")
    size = _size(settings, decided)
    spec, context, limits = decided.spec, decided.context, decided.limits
    if not decided.native:
        pages = allocate_pages(spec, size, decided.kv_dtype, decided.device)
        sequences = limits.max_sequences
        runner = ModelRunner(
            loaded, TorchOperations(), pages, context=context, max_sequences=sequences, grammars=grammars
        )
        return runner, loaded, size
    native = NativeRunner(
        loaded,
        Pool(decided.threads),
        allocate_native_pages(spec, size, decided.kv_dtype),
        context=context,
        max_sequences=limits.max_sequences,
        step_tokens=limits.step_tokens,
        grammars=grammars,
    )
    return native, loaded, size


def _cuda_runner(settings: Settings, decided: _Decided, grammars: Grammars, laps: _Laps) -> Built:
    """Kernels are compiled by threads while the weights are loaded."""
    from penstock.forward.memory import allocate_pages
    from penstock.forward.rehearse import Sizes, capture, compile_ahead, rehearse
    from penstock.forward.runner import ModelRunner
    from penstock.kernels.cuda.ahead import Ahead
    from penstock.kernels.cuda_ops import CudaOperations

    ahead = Ahead(decided.threads)
    spec, limits = decided.spec, decided.limits
    laps.end("triton")
    sizes = Sizes(settings.cache.block_size, decided.context, limits.step_tokens, limits.max_sequences)
    compile_ahead(ahead, spec, sizes, dtype=decided.dtype, device=decided.device)
    laps.end("kernels noted")
    loaded = _load(settings, decided)
    laps.end("weights")
    ahead.wait()
    laps.end("kernels compiled")
    recorder = rehearse(loaded, sizes, dtype=decided.dtype)
    laps.end("rehearsal")
    size = _size(settings, decided)
    pages = allocate_pages(spec, size, decided.kv_dtype, decided.device)
    runner = ModelRunner(
        loaded,
        CudaOperations(),
        pages,
        context=decided.context,
        max_sequences=limits.max_sequences,
        grammars=grammars,
    )
    laps.end("cache")
    capture(runner, recorder)
    laps.end("graphs")
    return runner, loaded, size


def _device(settings: Settings) -> torch.device:
    import torch

    kind = settings.model.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidSetting(
            "device: there is no CUDA device here, or this torch was built without CUDA", param="device"
        )
    return torch.device(kind)
