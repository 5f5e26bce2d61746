"""The start of speculation on a GPU: what drafts is loaded before the memory of the cache is known, and is bound to
the backend once that is built."""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.flow.step_costs import StepCosts
from penstock.forward.backend import BackendConfig
from penstock.forward.cuda_backend import CudaBackend
from penstock.forward.cuda_chain import ChainHead
from penstock.forward.cuda_draft_model import DraftModelOnDevice
from penstock.forward.cuda_medusa import MedusaNetwork
from penstock.forward.cuda_pages import CudaPages
from penstock.forward.cuda_proposer import HeadDrafts, HeadNetwork
from penstock.forward.graph_capture import GraphCapture
from penstock.forward.memory import CacheSize
from penstock.forward.step_costs import step_costs
from penstock.kernels.interface import Pages
from penstock.model import Decoder, open_source
from penstock.model.load_dense import TORCH_DTYPES, load_dense
from penstock.model.weights.dense_form import Allocate
from penstock.speculate.chain_proposer import ChainSource
from penstock.speculate.draft_model import DraftModelSource
from penstock.speculate.lookup import PromptLookup
from penstock.speculate.medusa_proposer import MedusaSource
from penstock.speculate.proposer import DraftSource, Proposer
from penstock.store.spec import ModelSpec

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # of the steps whose cost is measured

Loaded = HeadNetwork | Decoder | None  # a head, a draft model, or (lookup) nothing


def load_proposer(config: BackendConfig, target: Decoder, allocate: Allocate | None) -> Loaded:
    """`allocate`: memory for weights."""
    source: DraftSource | None = config.drafts
    if isinstance(source, ChainSource):
        return ChainHead(source.spec, source.weights, target, config.context, allocate)
    if isinstance(source, MedusaSource):
        return MedusaNetwork(source.spec, source.weights, target, allocate)
    if isinstance(source, DraftModelSource):
        files = source.files
        weights = open_source(files.weights, files.format, files.spec.quantization)
        dtype, device = TORCH_DTYPES[config.dtype], target.embedding.dense.device
        return load_dense(files.spec, weights, dtype=dtype, device=device, context=config.context, allocate=allocate)
    return None


def start_drafting(
    config: BackendConfig,
    backend: CudaBackend,
    loaded: Loaded,
    size: CacheSize,
    capture: GraphCapture,
    *,
    weights_bytes: int,
    allocate: Allocate | None,
) -> StepCosts:
    """Rows get drafts from now on. `allocate`: memory for KV pages."""
    device, dtype = torch.device(config.device), TORCH_DTYPES[config.dtype]

    def pages(spec: ModelSpec) -> list[Pages]:
        groups = len(spec.cache_groups)
        blocks = CacheSize(size.block_size, size.blocks[:1] * groups, (0,) * groups)
        return CudaPages(config.kv_types, None, dtype, device).allocate(spec, blocks, allocate)

    copy, draft_s = backend.copy_of_slots(), 0.0
    proposer: Proposer
    forget: Callable[[], None] | None = None
    if isinstance(loaded, Decoder):
        host = backend.device_host(size.context, pages)
        proposer = draft_model = DraftModelOnDevice(loaded, host, copy, config.limits.step_tokens)
        draft_model.capture(capture)
        forget = draft_model.forget
        draft_s = draft_model.draft_seconds()
    elif loaded is not None:
        proposer = head = HeadDrafts(loaded, backend.device_host(size.context, pages))
        head.capture(capture)
        draft_s = head.draft_seconds()
    else:
        proposer = PromptLookup(copy.tokens)
    what = (config.files.name, weights_bytes, torch.cuda.get_device_name(), config.dtype)
    limits, groups = config.limits, len(config.spec.cache_groups)
    costs = step_costs(backend, what, max_rows=limits.max_sequences, num_groups=groups, sizes=ROWS, draft_s=draft_s)
    backend.draft_with(proposer, copy, costs, config.audit, forget)
    if isinstance(proposer, HeadDrafts):
        backend.follow_with(proposer)
    return costs
