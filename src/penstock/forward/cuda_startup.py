"""The start of a CUDA backend: precompile kernels before there are weights, run the largest steps before there is a KV
cache, capture CUDA graphs.

The memory that the largest steps took stays with torch's allocator, and so counts as in use when the cache gets the
rest. Libraries such as cuBLAS are initialised on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from msgspec.structs import replace

from penstock.errors import OutOfMemory
from penstock.forward.backend import BackendConfig, BuiltBackend, EndPhase, Model
from penstock.forward.cuda_backend import CudaBackend, ReleasableMemory
from penstock.forward.device_arena import DeviceArena
from penstock.forward.graph_capture import GraphCapture
from penstock.forward.loading import choose_cache_size
from penstock.forward.memory import CacheSize
from penstock.forward.torch_loading import (
    allocate_pages,
    coded_form,
    device_memory,
    has_codes,
    load_blank,
    load_model,
    open_weights,
)
from penstock.forward.warm_up import run_warm_up_steps
from penstock.kernels.cuda.precompile import Precompiler
from penstock.kernels.cuda.triton_internals import can_defer_compilation
from penstock.model import Decoder
from penstock.model.load_dense import TORCH_DTYPES, load_dense
from penstock.model.weights.dummy_tensors import BlankSource
from penstock.startup import process_tuning, torch_process
from penstock.startup.gpu_warmup import wait_awake
from penstock.store.spec import ModelSpec
from penstock.system.ownership import owns_process

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache

logger = logging.getLogger(__name__)

# Tokens of a step that launches the same kernels as the largest, but does not use the attention of cuDNN, which takes a
# second to initialise on a machine where it never ran.
SHORT = 1024


class StepSizes(NamedTuple):
    """The steps and sequences that the backend is built for."""

    block_size: int
    context: int
    step_tokens: int
    max_sequences: int


def build(config: BackendConfig, grammars: GrammarCache | None, end_phase: EndPhase) -> BuiltBackend:
    """Other processes compile kernels while the weights are loaded. An engine in its own process can sleep; one in a
    user's process leaves all memory to torch."""
    end_phase("triton")
    torch_process.set_torch_threads(config.threads)
    process_tuning.freeze_startup_objects()  # before compilation, which leaves much garbage
    spec, limits = config.spec, config.limits
    device, dtype = torch.device("cuda"), TORCH_DTYPES[config.dtype]
    sizes = StepSizes(config.settings.cache.block_size, config.context, limits.step_tokens, limits.max_sequences)
    source, form = open_weights(config, device) if has_codes(config) else None, coded_form(config, device)
    blank = None if form is None else partial(load_blank, config, form, source)
    with Precompiler(config.threads, ready=wait_awake) as precompiler:
        precompile(precompiler, spec, sizes, dtype=dtype, device=device, blank=blank)
        end_phase("kernels noted")
        memory = ReleasableMemory(DeviceArena(device), DeviceArena(device)) if owns_process() else None
        model = load_model(config, device, memory and memory.weights.empty, source)
        torch_process.set_torch_threads(1)  # what is left to the host takes less time than waking threads
        end_phase("weights")
    end_phase("kernels compiled")
    capture = run_largest_steps(model, sizes, dtype=dtype)
    end_phase("rehearsal")
    size = choose_cache_size(config, device_memory(device, memory.weights.num_bytes if memory else 0))
    pages = allocate_pages(spec, size, TORCH_DTYPES[config.dtype], device, memory and memory.kv.empty)
    backend = CudaBackend(
        model,
        pages,
        context=size.context,
        max_sequences=limits.max_sequences,
        grammars=grammars,
        memory=memory,
    )
    end_phase("cache")
    capture_graphs(backend, sizes, capture)
    end_phase("graphs")
    return BuiltBackend(backend, model.num_bytes, size, keeps_codes=model.keeps_codes)


def precompile(
    precompiler: Precompiler,
    spec: ModelSpec,
    sizes: StepSizes,
    *,
    dtype: torch.dtype,
    device: torch.device,
    blank: Callable[[int], Decoder] | None = None,
) -> None:
    """Have `precompiler` compile all kernels that a start needs; its processes go on when this returns. `blank`: gives
    a model of so many layers or more, where weights are not dense."""
    if not can_defer_compilation():
        return
    try:
        _find_kernels(precompiler, spec, sizes, dtype, device, blank)
    except (torch.OutOfMemoryError, OutOfMemory):
        logger.debug("no memory to precompile kernels: each is compiled at its first launch")
    torch.cuda.empty_cache()


def _find_kernels(
    precompiler: Precompiler,
    spec: ModelSpec,
    sizes: StepSizes,
    dtype: torch.dtype,
    device: torch.device,
    blank: Callable[[int], Decoder] | None,
) -> None:
    """Goes through the steps of a start with blank weights and as few layers as possible: one of each cache group, and
    one before the last, which computes only the wanted tokens behind its attention."""
    layers = max(2, 1 + max(group.layers[0] for group in spec.cache_groups))
    if blank is None:
        small = replace(spec, num_layers=min(layers, spec.num_layers))
        model = load_dense(small, BlankSource(device), dtype=dtype, device=device, context=sizes.context)
    else:
        model = blank(layers)
    backend = _backend(model, sizes, dtype, device)
    largest = min(sizes.step_tokens, sizes.context - 1)
    with precompiler.collecting():  # the large kernels first: they take longest to compile
        _run_steps(backend, model, sizes, min(largest, SHORT))
        backend.graphs(sizes.step_tokens).decode.run_uncaptured()
    if precompiler.is_compiling:  # meanwhile libraries are initialised for `run_largest_steps`
        with precompiler.collecting():
            _run_steps(backend, model, sizes, largest)


def run_largest_steps(model: Model, sizes: StepSizes, *, dtype: torch.dtype) -> GraphCapture:
    """Runs the largest steps over a cache of nothing but block 0, and captures the largest graphs. The result keeps the
    memory of the graphs to come."""
    capture = GraphCapture()
    setting, what = "step_tokens", f"{sizes.step_tokens} tokens"
    try:
        backend = _backend(model, sizes, dtype, torch.device("cuda"))
        _run_steps(backend, model, sizes, min(sizes.step_tokens, sizes.context - 1))
        setting, what = "max_sequences", f"{sizes.max_sequences} sequences"
        backend.graphs(sizes.step_tokens).capture_largest(capture)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"there is no memory for a step of {what} beside the weights: {error}. Lower {setting}, or choose a "
            "smaller model or dtype",
            param=setting,
        ) from None
    return capture


def capture_graphs(backend: CudaBackend, sizes: StepSizes, capture: GraphCapture) -> None:
    """Capture all CUDA graphs, over the real cache, and have the backend use them."""
    graphs = backend.graphs(sizes.step_tokens)
    try:
        graphs.capture(capture)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"there is no memory for CUDA graphs beside the weights and the KV cache: {error}. Lower memory_fraction, "
            "kv_memory or max_sequences",
            param="memory_fraction",
        ) from None
    backend.use(graphs)


def _backend(model: Model, sizes: StepSizes, dtype: torch.dtype, device: torch.device) -> CudaBackend:
    groups = len(model.spec.cache_groups)
    pages = allocate_pages(model.spec, CacheSize(sizes.block_size, (1,) * groups, (0,) * groups), dtype, device)
    return CudaBackend(model, pages, context=sizes.context, max_sequences=sizes.max_sequences)


def _run_steps(backend: CudaBackend, model: Model, sizes: StepSizes, tokens: int) -> None:
    run_warm_up_steps(
        backend,
        tokens,
        max_sequences=sizes.max_sequences,
        block_size=sizes.block_size,
        num_groups=len(model.spec.cache_groups),
    )
