"""Load a model whose matrices keep the codes they are stored in, or are rounded to codes: for CUDA."""

from __future__ import annotations

import logging

import torch

from penstock.errors import OutOfMemory
from penstock.model import registry
from penstock.model.layers.decoder import Decoder
from penstock.model.load import load
from penstock.model.weights import blank, loader
from penstock.model.weights.coded_form import CodedForm
from penstock.model.weights.place import WHOLE, Shard
from penstock.model.weights.source import Source
from penstock.store.spec import ModelSpec

logger = logging.getLogger(__name__)


def load_coded(
    spec: ModelSpec, source: Source, form: CodedForm, *, context: int, threads: int = 1, shard: Shard = WHOLE
) -> Decoder:
    weight_map = registry.architecture(spec.architecture).weight_map
    if names := loader.dequantized(weight_map, source, spec, form, shard):
        logger.warning(
            "%d quantized matrices of %s are dequantized to %s, since no product here reads their codes (such as %s)",
            len(names),
            spec.name,
            str(form.dense.dtype).removeprefix("torch."),
            names[0],
        )
    try:
        return load(spec, source, form, context=context, threads=threads, shard=shard)
    except torch.OutOfMemoryError:
        needed = coded_bytes(spec, source, form, shard) / 2**30
        raise OutOfMemory(
            f"weights of {spec.name} take {needed:.1f} GiB, more than is free on {form.dense.device}", param="model"
        ) from None


def coded_bytes(spec: ModelSpec, source: Source, form: CodedForm, shard: Shard = WHOLE) -> int:
    """Bytes of the loaded weights, before they are read."""
    return loader.coded_bytes(registry.architecture(spec.architecture).weight_map, source, spec, form, shard)


def blank_layers(spec: ModelSpec, source: Source, least: int) -> blank.BlankLayers:
    """Layers that stand for all layers of `source`, `least` or more."""
    return blank.layers_like(registry.architecture(spec.architecture).weight_map, source, spec, least)
