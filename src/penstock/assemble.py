"""The composition root: the only module that knows all the others, and where "auto" becomes a decision.

Imports of torch and of the engine's insides stay inside the functions that need them: the frontend of an isolated
engine never loads them.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import InvalidSetting, ModelInvalid
from penstock.flow import Engine
from penstock.pipeline import Pipeline
from penstock.prompt.template import ChatTemplate
from penstock.route.replica import Replica
from penstock.settings import Settings
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec
from penstock.tokenize.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from starlette.types import ASGIApp

    from penstock.engine.loop import EngineLoop
    from penstock.intake.desk import Desk
    from penstock.kernels.interface import Operations


def model(settings: Settings, pulling: Progress | None = None) -> ModelFiles:
    return resolve(settings.model.model, progress=pulling, weights=settings.model.load_format != "dummy")


def pipeline(settings: Settings, files: ModelFiles) -> Pipeline:
    tokenizer = Tokenizer.load(files.tokenizer) if files.tokenizer is not None else None
    template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template is not None else None
    return Pipeline(files.spec, tokenizer, template, context=context(settings, files.spec))


def engine(settings: Settings) -> tuple[Engine, dict[str, Any]]:
    """An engine that is ready, in this process or in its own, and what is to be known about it."""
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


def server(settings: Settings, files: ModelFiles, replica: Replica) -> tuple[ASGIApp, Desk]:
    from penstock.intake.app import build
    from penstock.intake.desk import Desk
    from penstock.observe.metrics import Metrics

    if files.tokenizer is None:
        raise ModelInvalid(f"{files.name} has no tokenizer, so it cannot be served", param="model")
    tokenizer = Tokenizer.load(files.tokenizer)
    template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template is not None else None
    pipeline = Pipeline(files.spec, tokenizer, template, context=context(settings, files.spec))
    desk = Desk(files, pipeline, tokenizer, replica, Metrics(files.name), stall_s=settings.serve.stall_s)
    return build(desk, settings.serve), desk


def engine_loop(settings: Settings) -> tuple[EngineLoop, dict[str, Any]]:
    """Load the model and put an engine around it; the facts say what was decided and how long it took."""
    import torch

    from penstock.cache import CacheManager
    from penstock.engine.loop import EngineLoop
    from penstock.forward.memory import allocate_pages, check_weights, size_cache
    from penstock.forward.rehearse import rehearse
    from penstock.forward.runner import ModelRunner
    from penstock.model.load import choose_dtype, load, open_source, weight_bytes
    from penstock.model.weights.dummy import DummySource
    from penstock.schedule.scheduler import Scheduler

    started = time.monotonic()
    files = model(settings)
    spec, length = files.spec, context(settings, files.spec)
    device = _device(settings)
    dtype = choose_dtype(settings.model.dtype, spec, device)
    limits = _limits(settings, device.type)
    torch.set_num_threads(settings.engine.threads or usable_cores())
    check_weights(weight_bytes(spec, dtype=dtype, device=device), device)
    dummy = settings.model.load_format == "dummy"
    source = DummySource(device) if dummy else open_source(files.weights, files.format)
    loaded = load(spec, source, dtype=dtype, device=device, context=length)
    load_s = time.monotonic() - started
    ops = _operations(device)
    if device.type == "cuda":
        rehearse(loaded, ops, settings.cache.block_size, context=length, tokens=limits.step_tokens, dtype=dtype)
    size = size_cache(
        spec,
        settings.cache,
        dtype=dtype,
        device=device,
        context=length,
        max_sequences=limits.max_sequences,
        step_tokens=limits.step_tokens,
    )
    pages = allocate_pages(spec, size, dtype, device)
    runner = ModelRunner(loaded, ops, pages, context=length, max_sequences=limits.max_sequences)
    if device.type == "cuda":
        runner.capture_graphs()
    cache = CacheManager(spec.cache_groups, size.blocks, size.block_size, settings.cache.prefix_caching)
    scheduler = Scheduler(
        cache,
        step_tokens=limits.step_tokens,
        max_sequences=limits.max_sequences,
        max_waiting=settings.schedule.max_waiting,
        policy=settings.schedule.policy,
        lookahead=limits.lookahead,
        context=length,
    )
    facts = {
        "model": files.name,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "context": length,
        "weights_bytes": loaded.num_bytes,
        "kv_bytes": size.num_bytes,
        "kv_tokens": (size.blocks[0] - 1) * size.block_size,
        "max_sequences": limits.max_sequences,
        "step_tokens": limits.step_tokens,
        "load_s": load_s,
        "start_s": time.monotonic() - started,
    }
    return EngineLoop(scheduler, runner), facts


def context(settings: Settings, spec: ModelSpec) -> int:
    """Most tokens a sequence may have."""
    asked = settings.model.context
    if asked is not None and asked > spec.context:
        raise InvalidSetting(
            f"context: {spec.name} was made for {spec.context} tokens, {asked} were asked for", param="context"
        )
    return asked or spec.context


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def _operations(device: torch.device) -> Operations:
    if device.type == "cuda":
        from penstock.kernels.cuda_ops import CudaOperations

        return CudaOperations()
    from penstock.kernels.torch_ops import TorchOperations

    return TorchOperations()


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
