"""Steps that are run at the start of an engine on a CUDA device: before there are weights, to find out which kernels to
compile; and before there is a cache, to find out how much memory a step takes.

What the latter took stays with torch's allocator, and so counts as in use when the cache is given the rest. Libraries
such as cuBLAS are set up on the way.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from msgspec.structs import replace

from penstock.errors import OutOfMemory
from penstock.forward.graphs import Recorder
from penstock.forward.memory import CacheSize, allocate_pages
from penstock.forward.runner import Model, ModelRunner
from penstock.kernels.cuda.precompile import Ahead
from penstock.kernels.cuda.triton_internals import can_defer_compilation
from penstock.kernels.cuda_ops import CudaOperations
from penstock.model.load import load
from penstock.model.weights.dummy import BlankSource
from penstock.store.spec import ModelSpec

logger = logging.getLogger(__name__)

# Tokens of a step that takes the same kernels as the largest, and is not worth the attention of cuDNN, which takes a
# second to set itself up on a machine where it never ran.
SHORT = 1024


class Sizes(NamedTuple):
    """How large the steps and sequences are that the engine is built for."""

    block_size: int
    context: int
    step_tokens: int
    max_sequences: int


def compile_ahead(ahead: Ahead, spec: ModelSpec, sizes: Sizes, *, dtype: torch.dtype, device: torch.device) -> None:
    """Have `ahead` compile all kernels that a start needs; its processes go on when this returns."""
    if not can_defer_compilation():
        return
    try:
        _note_kernels(ahead, spec, sizes, dtype, device)
    except (torch.OutOfMemoryError, OutOfMemory):
        logger.debug("no memory to find out which kernels are needed: they will be compiled one by one")
    torch.cuda.empty_cache()


def _note_kernels(ahead: Ahead, spec: ModelSpec, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> None:
    """Goes through the steps of a start, with blank weights, and with as few layers as have one of each cache group,
    and one before the last: of the last one, only what follows attention for the tokens that are wanted is computed."""
    layers = max(2, 1 + max(group.layers[0] for group in spec.cache_groups))
    few = replace(spec, num_layers=min(layers, spec.num_layers))
    model = load(few, BlankSource(device), dtype=dtype, device=device, context=sizes.context)
    runner = _runner(model, sizes, dtype, device)
    largest = min(sizes.step_tokens, sizes.context - 1)
    with ahead.noting():  # first what has the large kernels, which take longest to compile
        runner.warm_up(min(largest, SHORT))
        runner.graphs(sizes.step_tokens).decode.walk()
    if ahead.at_work:  # who rehearses will find the libraries set up
        with ahead.noting():
            runner.warm_up(largest)


def rehearse(model: Model, sizes: Sizes, *, dtype: torch.dtype) -> Recorder:
    """Runs the largest steps, over pages that have no more than the block that is nobody's, and captures the largest
    graphs. The recorder that it gives keeps the memory of the graphs to come."""
    recorder = Recorder()
    knob, what = "step_tokens", f"{sizes.step_tokens} tokens"
    try:
        runner = _runner(model, sizes, dtype, torch.device("cuda"))
        runner.warm_up(min(sizes.step_tokens, sizes.context - 1))
        knob, what = "max_sequences", f"{sizes.max_sequences} sequences"
        runner.graphs(sizes.step_tokens).try_largest(recorder)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"there is no memory for a step of {what} beside the weights: {error}. Lower {knob}, or choose a smaller "
            "model or dtype",
            param=knob,
        ) from None
    return recorder


def capture(runner: ModelRunner, sizes: Sizes, recorder: Recorder) -> None:
    """Capture all graphs, over the real cache, and have the runner use them."""
    graphs = runner.graphs(sizes.step_tokens)
    try:
        graphs.capture(recorder)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"there is no memory for CUDA graphs beside the weights and the KV cache: {error}. Lower memory_fraction, "
            "kv_memory or max_sequences",
            param="memory_fraction",
        ) from None
    runner.use(graphs)


def _runner(model: Model, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> ModelRunner:
    groups = len(model.spec.cache_groups)
    pages = allocate_pages(model.spec, CacheSize(sizes.block_size, (1,) * groups, (0,) * groups), dtype, device)
    return ModelRunner(model, CudaOperations(), pages, context=sizes.context, max_sequences=sizes.max_sequences)
