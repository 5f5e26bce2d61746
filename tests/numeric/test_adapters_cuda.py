"""Adapters on a GPU against torch's operations on the CPU, which `test_adapters` compares with PEFT."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers import tiny_models
from helpers.adapter_engine import named
from helpers.adapter_samples import write_adapter
from helpers.paged_model import PagedModel
from helpers.triton_device import DEVICE, INTERPRETED, MARKS
from penstock.flow import Adapter
from penstock.forward import delta_tiles
from penstock.forward.delta_tiles import numbers_of, step_deltas
from penstock.forward.device_adapters import DeviceAdapter, device_adapters, device_copier
from penstock.forward.torch_adapters import TorchAdapter
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.reference import linear
from penstock.model import Decoder, open_source
from penstock.model.load_dense import load_dense
from penstock.store.hf_config import spec_from_config
from penstock.store.spec import ModelSpec

pytestmark = MARKS
LENGTH = 6 if INTERPRETED else 90
KINDS: tuple[dict[str, Any], ...] = (
    {"rank": 16, "alpha": 32.0, "use_rslora": True, "size": 0.05},
    {"rank": 33, "alpha": 20.0, "layers": (0, 2), "layers_to_transform": [0, 2]},
    {"rank": 1, "modules": ("o_proj", "down_proj")},
    {"rank": 17, "modules": ("lm_head",), "size": 0.3},
    {"rank": 18, "modules": ("embed_tokens",), "size": 0.02},
    {"rank": 2, "modules": ("embed_tokens", "gate_proj", "lm_head")},
)
TEXTS = [random.Random(seed).choices(range(2, tiny_models.VOCAB), k=LENGTH) for seed in range(len(KINDS) + 2)]
FAMILIES = ("llama",) if INTERPRETED else tiny_models.FAMILIES


def load_adapters(spec: ModelSpec, adapters: list[Adapter], dtype: torch.dtype) -> tuple[list[DeviceAdapter], Any]:
    copier = device_copier(spec, dtype, DEVICE, 64 << 20)
    cache, memory = device_adapters(copier, 64 << 20), copier.memory
    for one in adapters:
        assert cache.start(one)
        [(_, error)] = cache.take_finished(wait_s=60.0)
        assert error is None
    return [cache.get(one) for one in adapters], memory


def portions(draw: random.Random) -> list[dict[int, int]]:
    """All texts to their ends: prompts beside decodes, and decodes of all of them."""
    done, steps = [0] * len(TEXTS), []
    while any(count < LENGTH for count in done):
        wanted = [one for one in range(len(TEXTS)) if done[one] < LENGTH and draw.random() < 0.8]
        step = {one: min(draw.choice((1, 7, 40)), LENGTH - done[one]) for one in wanted}
        for one, count in step.items():
            done[one] += count
        if step:
            steps.append(step)
    return steps


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_models.make(request.param, tmp_path / "model")


@pytest.mark.parametrize("dtype", [torch.float32] if INTERPRETED else [torch.float32, torch.float16])
@pytest.mark.parametrize("many_from", [1, 10_000], ids=["many", "few"])
def test_mixed_is_torch_alone(
    folder: Path, tmp_path: Path, dtype: torch.dtype, many_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_tiles, "MANY_FROM", many_from)
    monkeypatch.setattr(linear, "prefers_onednn", lambda *_: False)  # the interpreter's model is on the CPU
    spec = spec_from_config(json.loads((folder / "config.json").read_text()), None, folder.name)
    source = open_source(sorted(folder.glob("*.safetensors")), "safetensors")
    adapters = [
        named(write_adapter(tmp_path / f"a{seed}", spec, seed=seed, dtype="float16", **kind))
        for seed, kind in enumerate(KINDS)
    ]
    owners: list[int | None] = [*range(len(KINDS)), None, 0]
    cpu = torch.device("cpu")
    exact = load_dense(spec, source, dtype=torch.float32, device=cpu, context=512)
    parts = [TorchAdapter(one, spec, torch.float32).parts for one in adapters]
    model: Decoder = load_dense(spec, source, dtype=dtype, device=DEVICE, context=512)
    loaded, memory = load_adapters(spec, adapters, dtype)
    ops = CudaOperations()

    def adapt(tokens: list[DeviceAdapter | None]) -> None:
        ops.deltas = step_deltas(memory, numbers_of(tokens, [1] * len(tokens)))

    mixed = PagedModel(model, ops=ops, dtype=dtype, device=DEVICE, adapt=adapt)
    plain = PagedModel(exact)
    for text, owner in zip(TEXTS, owners, strict=True):
        mixed.add(text, None if owner is None else loaded[owner])
        plain.add(text)
    for step in portions(random.Random(1)):
        mixed.step(step)
    plain.step(dict.fromkeys(range(len(TEXTS)), LENGTH))
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    for index, (text, owner) in enumerate(zip(TEXTS, owners, strict=True)):
        alone = PagedModel(exact)
        alone.add(text, None if owner is None else parts[owner])
        alone.step({0: LENGTH})
        assert (mixed.logits(index).cpu().float() - alone.logits(0)).abs().max() < tolerance
        assert owner is None or (plain.logits(index) - alone.logits(0)).abs().max() > 0.01
