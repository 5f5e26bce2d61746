"""The start of a CUDA backend: precompile kernels before there are weights, run the largest steps before there is a KV
cache, capture CUDA graphs.

The memory that the largest steps took stays with torch's allocator, and so counts as in use when the cache gets the
rest. Libraries such as cuBLAS are initialised on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from msgspec.structs import replace

from penstock.adapters import AdapterCache
from penstock.errors import OutOfMemory
from penstock.flow.step_costs import StepCosts
from penstock.forward.accepted_draws import run_uncaptured
from penstock.forward.backend import BackendConfig, BuiltBackend, EndPhase, Model
from penstock.forward.cuda_backend import CudaBackend
from penstock.forward.cuda_pages import CudaPages
from penstock.forward.cuda_ranks import ALONE, RankPlace, join, silent_place
from penstock.forward.cuda_speculation import load_proposer, start_drafting
from penstock.forward.device_adapters import device_adapters, device_copier
from penstock.forward.device_arena import DeviceArena
from penstock.forward.graph_capture import GraphCapture
from penstock.forward.loading import choose_cache_size
from penstock.forward.memory import CacheSize
from penstock.forward.rank_adapters import FollowingAdapters, work_of
from penstock.forward.rank_forward import Leader, agreed_size
from penstock.forward.releasable_memory import ReleasableMemory
from penstock.forward.step_adapters import Adapters
from penstock.forward.torch_loading import (
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
from penstock.model.weights.dense_form import Allocate
from penstock.model.weights.dummy_tensors import BlankSource
from penstock.model.weights.place import WHOLE, Shard
from penstock.speculate.proposer import DraftSource
from penstock.startup import process_tuning, torch_process
from penstock.startup.gpu_warmup import wait_awake
from penstock.startup.preflight import readable
from penstock.store.spec import ModelSpec
from penstock.system.ownership import owns_process

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache

logger = logging.getLogger(__name__)

# Tokens of a step that launches the same kernels as the largest, but does not use the attention of cuDNN, which takes a
# second to initialise on a machine where it never ran.
SHORT = 1024
LEAST_ADAPTERS = 1 << 20  # bytes of memory for adapters while kernels are found, and none is read


class StepSizes(NamedTuple):
    """The steps and sequences that the backend is built for, and by which kernels it computes them."""

    block_size: int
    context: int
    step_tokens: int
    max_sequences: int


class Extras(NamedTuple):
    """What steps are launched for beside the model."""

    place: RankPlace = ALONE  # among the ranks of a group
    drafts: DraftSource | None = None
    adapted: bool = False  # sequences may have adapters,
    adapters: Adapters | None = None  # once there is memory for them
    deterministic: bool = False
    blank: Callable[[int], Decoder] | None = None  # a model of so many layers at least, of weights with codes


PLAIN = Extras()


def build(config: BackendConfig, grammars: GrammarCache | None, end_phase: EndPhase) -> BuiltBackend:
    """Other processes compile kernels while the weights are loaded. An engine in its own process can sleep; one in a
    user's process leaves all memory to torch."""
    weights_bytes, followers = 0, config.followers

    def loaded(num_bytes: int) -> None:
        nonlocal weights_bytes
        weights_bytes = num_bytes + (0 if followers is None else followers.wait_loaded())

    backend, built = _start(config, grammars, end_phase, loaded)
    if followers is not None:
        backend.lead(followers)
    return built._replace(weights_bytes=weights_bytes)


def follow_rank_0(config: BackendConfig, leader: Leader) -> None:
    """What any other rank does: the same start, and then what rank 0 tells it."""
    backend, _ = _start(config, None, lambda _: None, leader.loaded)
    held = backend.adapters.held
    backend.follow(work_of(leader, held if isinstance(held, FollowingAdapters) else None))


def _start(
    config: BackendConfig, grammars: GrammarCache | None, end_phase: EndPhase, loaded: Callable[[int], None]
) -> tuple[CudaBackend, BuiltBackend]:
    """Ranks meet once each has its weights; from then on all do the same, one waiting for the other."""
    end_phase("triton")
    torch_process.set_torch_threads(config.threads)
    process_tuning.freeze_startup_objects()  # before compilation, which leaves much garbage
    spec, limits = config.spec, config.limits
    device, dtype = torch.device("cuda"), TORCH_DTYPES[config.dtype]
    sizes = StepSizes(config.settings.cache.block_size, config.context, limits.step_tokens, limits.max_sequences)
    made = CudaPages(config.kv_types, config.kv_scales, dtype, device)
    source, form = open_weights(config, device) if has_codes(config) else None, coded_form(config, device)
    extras = Extras(
        drafts=config.drafts,
        adapted=config.adapter_bytes > 0,
        deterministic=config.settings.engine.deterministic,
        blank=None if form is None else partial(load_blank, config, form, source),
    )
    with Precompiler(config.threads, ready=wait_awake) as precompiler:
        precompile(precompiler, spec, sizes, made, dtype=dtype, shard=config.shard, extras=extras)
        end_phase("kernels noted")
        memory = ReleasableMemory(*(DeviceArena(device) for _ in range(3))) if owns_process() else None
        model = load_model(config, device, memory and memory.weights.empty, source)
        with no_memory_for_proposer():
            proposer = load_proposer(config, model, memory and memory.weights.empty)
        torch_process.set_torch_threads(1)  # what is left to the host takes less time than waking threads
        end_phase("weights")
    end_phase("kernels compiled")
    loaded(model.num_bytes)
    extras = extras._replace(place=join(config))
    if extras.adapted:
        adapters = _take_adapter_memory(config, device, memory and memory.adapters.empty)
        extras = extras._replace(adapters=adapters)
    capture = run_largest_steps(model, sizes, made, dtype=dtype, extras=extras)
    end_phase("rehearsal")
    size = choose_cache_size(config, device_memory(device, sum(arena.num_bytes for arena in memory or ())))
    if extras.place.ranks is not None:
        size = agreed_size(size, extras.place.ranks)
    pages = made.allocate(model.spec, size, memory and memory.kv.empty)
    with beside_the_cache("slots"):  # and the states that a head drafts from
        backend = CudaBackend(
            model,
            pages,
            dtype=dtype,
            context=size.context,
            max_sequences=limits.max_sequences,
            grammars=grammars,
            memory=memory,
            place=extras.place,
            drafts=config.drafts,
            head=None if isinstance(proposer, Decoder) else proposer,
            adapters=extras.adapters,
            deterministic=extras.deterministic,
        )
    end_phase("cache")
    capture_graphs(backend, sizes, capture)
    end_phase("graphs")
    costs: StepCosts | None = None
    if config.drafts is not None:
        allocate, num_bytes = memory and memory.kv.empty, model.num_bytes
        with beside_the_cache("what drafts tokens"):
            costs = start_drafting(config, backend, proposer, size, capture, weights_bytes=num_bytes, allocate=allocate)
        end_phase("speculation")
    held = backend.adapters.held
    return backend, BuiltBackend(
        backend,
        model.num_bytes,
        size,
        costs,
        adapters=held if isinstance(held, AdapterCache) else None,
        keeps_codes=model.keeps_codes,
    )


@contextmanager
def no_memory_for_proposer() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"there is no memory for what drafts tokens beside the weights: {error}. Choose a smaller head or draft "
            "model, or set speculate to off",
            param="speculate",
        ) from None


def _take_adapter_memory(config: BackendConfig, device: torch.device, allocate: Allocate | None) -> Adapters:
    """Before the largest steps are run, and the KV cache gets the rest."""
    capacity, rank = config.adapter_bytes, config.shard.rank
    try:
        copier = device_copier(config.spec, TORCH_DTYPES[config.dtype], device, capacity, allocate, config.shard)
        if rank == 0:
            return Adapters(device_adapters(copier, capacity, config.followers, config.shard.world), copier.memory)
        return Adapters(FollowingAdapters(copier.start, copier.take_finished), copier.memory)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"there is no memory for {readable(capacity)} of adapters beside the weights: {error}. Lower "
            "adapter_memory",
            param="adapter_memory",
        ) from None


def precompile(
    precompiler: Precompiler,
    spec: ModelSpec,
    sizes: StepSizes,
    made: CudaPages,
    *,
    dtype: torch.dtype,
    shard: Shard = WHOLE,
    extras: Extras = PLAIN,
) -> None:
    """Have `precompiler` compile all kernels that a start needs; its processes go on when this returns. `blank`: gives
    a model of so many layers or more, where weights are not dense."""
    if not can_defer_compilation():
        return
    try:
        _find_kernels(precompiler, spec, sizes, made, dtype, shard, extras)
    except (torch.OutOfMemoryError, OutOfMemory):
        logger.debug("no memory to precompile kernels: each is compiled at its first launch")
    torch.cuda.empty_cache()


def _find_kernels(
    precompiler: Precompiler,
    spec: ModelSpec,
    sizes: StepSizes,
    made: CudaPages,
    dtype: torch.dtype,
    shard: Shard,
    extras: Extras,
) -> None:
    """Goes through the steps of a start with blank weights and as few layers as possible: one of each cache group, and
    one before the last, which computes only the wanted tokens behind its attention."""
    layers = max(2, 1 + max(group.layers[0] for group in spec.cache_groups))
    device = made.device
    small = replace(spec, num_layers=min(layers, spec.num_layers))
    if extras.blank is None:
        model = load_dense(small, BlankSource(device), dtype=dtype, device=device, context=sizes.context, shard=shard)
    else:
        model = extras.blank(layers)
        small = replace(spec, num_layers=model.spec.num_layers)  # files mix formats by layer
    extras = extras._replace(place=silent_place(shard, spec.vocab_size))
    if extras.adapted:
        copier = device_copier(small, dtype, device, LEAST_ADAPTERS, shard=shard)
        extras = extras._replace(adapters=Adapters(device_adapters(copier, LEAST_ADAPTERS), copier.memory))
    backend = _backend(model, sizes, made, dtype, extras)
    largest = min(sizes.step_tokens, sizes.context - 1)
    with precompiler.collecting():  # the large kernels first: they take longest to compile
        _run_steps(backend, model, sizes, min(largest, SHORT))
        backend.graphs(sizes.step_tokens).decode.run_uncaptured()
        if extras.drafts is not None:
            run_uncaptured(device)
    if precompiler.is_compiling:  # meanwhile libraries are initialised for `run_largest_steps`
        with precompiler.collecting():
            _run_steps(backend, model, sizes, largest)


def run_largest_steps(
    model: Model, sizes: StepSizes, made: CudaPages, *, dtype: torch.dtype, extras: Extras = PLAIN
) -> GraphCapture:
    """Runs the largest steps over a cache of nothing but block 0, and captures the largest graphs. The result keeps the
    memory of the graphs to come."""
    capture = GraphCapture()
    setting, what = "step_tokens", f"{sizes.step_tokens} tokens"
    try:
        backend = _backend(model, sizes, made, dtype, extras)
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
    with beside_the_cache("CUDA graphs"):
        graphs.capture(capture)
    backend.use(graphs)


@contextmanager
def beside_the_cache(what: str) -> Iterator[None]:
    """`what` takes memory once the KV cache has its own."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"there is no memory for {what} beside the weights and the KV cache: {error}. Lower memory_fraction, "
            "kv_memory or max_sequences",
            param="memory_fraction",
        ) from None


def _backend(model: Model, sizes: StepSizes, made: CudaPages, dtype: torch.dtype, extras: Extras) -> CudaBackend:
    groups = len(model.spec.cache_groups)
    pages = made.allocate(model.spec, CacheSize(sizes.block_size, (1,) * groups, (0,) * groups))
    return CudaBackend(
        model,
        pages,
        dtype=dtype,
        context=sizes.context,
        max_sequences=sizes.max_sequences,
        place=extras.place,
        drafts=extras.drafts,
        adapters=extras.adapters,
        deterministic=extras.deterministic,
    )


def _run_steps(backend: CudaBackend, model: Model, sizes: StepSizes, tokens: int) -> None:
    def run() -> None:
        run_warm_up_steps(
            backend,
            tokens,
            max_sequences=sizes.max_sequences,
            block_size=sizes.block_size,
            num_groups=len(model.spec.cache_groups),
            lengths_between=(500, 250, 50, 20) if backend.deterministic else (50, 20),
        )

    run()
    if backend.adapters.memory is not None:
        backend.adapters.rehearses = True
        run()
        backend.adapters.rehearses = False
