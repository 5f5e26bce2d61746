"""Every architecture on a GPU against transformers on the CPU."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from helpers import tiny_models
from helpers.paged_model import run_alone
from penstock.kernels.interface import Operations
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import open_source
from penstock.model.load_dense import load_dense
from penstock.store.hf_config import spec_from_config
from penstock.store.kv_types import kv_types

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROMPT = random.Random(0).choices(range(2, tiny_models.VOCAB), k=100)


def operations(kind: str) -> Operations:
    if kind == "torch":
        return TorchOperations()
    from penstock.kernels.cuda_ops import CudaOperations

    return CudaOperations()


@pytest.mark.parametrize("kind", ["torch", "triton"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 0.2)])
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_family(tmp_path: Path, family: str, dtype: torch.dtype, tolerance: float, kind: str) -> None:
    folder = tiny_models.make(family, tmp_path / "model")
    spec = spec_from_config(json.loads((folder / "config.json").read_text()), None, family)
    source = open_source(sorted(folder.glob("*.safetensors")), "safetensors")
    device = torch.device("cuda")
    model = load_dense(spec, source, dtype=dtype, device=device, context=512)
    with torch.inference_mode():
        theirs = tiny_models.oracle(folder)(torch.tensor([PROMPT])).logits[0]
    for portions in ((), (40, 1, 1, 7)):
        ours = run_alone(model, PROMPT, portions, dtype=dtype, device=device, ops=operations(kind))
        assert (ours.cpu() - theirs).abs().max() < tolerance


@pytest.mark.parametrize(("kv", "tolerance"), [("int8", 0.03), ("fp8", 0.12), ("int4", 0.4), ("int8,int4", 0.4)])
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_quantized_cache(tmp_path: Path, family: str, kv: str, tolerance: float) -> None:
    """Near the logits of a float32 cache, by their largest; in one step and in portions, whose later ones read what the
    earlier ones stored."""
    from penstock.forward.cuda_pages import CudaPages
    from penstock.forward.memory import CacheSize

    folder = tiny_models.make(family, tmp_path / "model")
    spec = spec_from_config(json.loads((folder / "config.json").read_text()), None, family)
    source = open_source(sorted(folder.glob("*.safetensors")), "safetensors")
    device, types = torch.device("cuda"), kv_types(kv)._replace(on_gpu=True)
    model = load_dense(spec, source, dtype=torch.float32, device=device, context=512)
    settings = {"dtype": torch.float32, "device": device}
    exact = run_alone(model, PROMPT, ops=operations("triton"), **settings)
    answers = []
    for portions in ((), (40, 1, 1, 7)):
        size = CacheSize(4, (512,) * len(spec.cache_groups), (0,) * len(spec.cache_groups))
        pages = CudaPages(types, None, torch.float32, device).allocate(spec, size)
        answers.append(run_alone(model, PROMPT, portions, ops=operations("triton"), pages=pages, **settings))
    for answer in answers:
        assert (answer - exact).norm() < tolerance * exact.norm()
    assert (answers[0] - answers[1]).norm() < 0.2 * tolerance * exact.norm()  # rounding decides about few codes
