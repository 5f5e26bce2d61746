"""Adapters against PEFT, on every architecture: the logits of each sequence are those of transformers with its own
adapter, alone and in any mixture. On the native kernels they are the same to the last bit, whatever shares the step."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import tiny_models
from helpers.adapter_engine import named
from helpers.adapter_samples import peft_model, write_adapter
from helpers.native_paged_model import NativePagedModel, needs_library
from helpers.paged_model import PagedModel
from penstock.flow import Adapter
from penstock.forward.adapter_loading import read_deltas
from penstock.forward.torch_adapters import TorchAdapter
from penstock.kernels.arrays import Array
from penstock.kernels.cpu import library
from penstock.kernels.cpu.low_rank import PackedAdapter
from penstock.kernels.cpu.program import Pool
from penstock.model import Decoder, PackedForm, load, open_source
from penstock.model.load_dense import load_dense
from penstock.store import hf_folder
from penstock.store.spec import ModelSpec

pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
TOLERANCE = 1e-4
# Ranks below, at and above a panel of the native kernels; scales by alpha / rank and by alpha / √rank; some modules;
# the head and the embedding, which are one table in some of the models.
KINDS: tuple[dict[str, Any], ...] = (
    {"rank": 4},
    {"rank": 16, "alpha": 32.0, "use_rslora": True, "size": 0.05},
    {"rank": 33, "alpha": 20.0, "layers": (0, 2), "layers_to_transform": [0, 2]},
    {"rank": 1, "modules": ("o_proj", "down_proj")},
    {"rank": 17, "modules": ("lm_head",), "size": 0.3},
    {"rank": 5, "modules": ("embed_tokens",), "size": 0.02},
    {"rank": 2, "modules": ("embed_tokens", "o_proj", "lm_head"), "use_rslora": True},
)
TEXTS = [random.Random(seed).choices(range(2, tiny_models.VOCAB), k=90) for seed in range(len(KINDS) + 2)]


@cache
def pool(threads: int) -> Pool:
    return Pool(threads)


def made(spec: ModelSpec, folder: Path, number: int) -> Adapter:
    """Its numbers are float16, so that no backend rounds them."""
    path = write_adapter(folder / f"adapter{number}", spec, seed=number, dtype="float16", **KINDS[number])
    return named(path)


class Family:
    def __init__(self, name: str, folder: Path) -> None:
        self.folder = tiny_models.make(name, folder / name)
        files = hf_folder.read(self.folder, name)
        self.spec, self.source = files.spec, open_source(files.weights, files.format)
        self.adapters = [made(self.spec, folder, number) for number in range(len(KINDS))]
        self.own: list[Adapter | None] = [*self.adapters, None, self.adapters[0]]  # [texts]
        self._oracles: dict[str, Any] = {}

    def expected(self, text: int) -> Array:
        adapter = self.own[text]
        path = "" if adapter is None else adapter.path
        if path not in self._oracles:
            folder = self.folder
            self._oracles[path] = peft_model(folder, Path(path)) if path else tiny_models.oracle(folder)
        with torch.inference_mode():
            logits: Array = self._oracles[path](torch.tensor([TEXTS[text]])).logits[0].numpy()
        return logits

    def packed(self, quantize: Any = None) -> tuple[Decoder, dict[str, PackedAdapter]]:
        model = load(self.spec, self.source, PackedForm(quantize), context=512)
        codes, layers = model.is_quantized, self.spec.num_layers
        adapters = {one.name: PackedAdapter(read_deltas(one, self.spec), layers, codes=codes) for one in self.adapters}
        return model, adapters


@pytest.fixture(scope="module", params=tiny_models.FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp("models"))


def mixed_portions() -> list[dict[int, int]]:
    """All texts to their ends: prompts beside decodes, and decodes of all of them."""
    done, steps, draw = [0] * len(TEXTS), [], random.Random(1)
    while any(count < 90 for count in done):
        wanted = [one for one in range(len(TEXTS)) if done[one] < 90 and draw.random() < 0.8]
        step = {one: min(draw.choice((1, 1, 1, 7, 40)), 90 - done[one]) for one in wanted}
        for one, count in step.items():
            done[one] += count
        if step:
            steps.append(step)
    return steps


def test_torch_is_peft(family: Family) -> None:
    model = load_dense(family.spec, family.source, dtype=torch.float32, device=torch.device("cpu"), context=512)
    parts = {one.name: TorchAdapter(one, family.spec, torch.float32).parts for one in family.adapters}
    mixed = PagedModel(model)
    own = [None if one is None else parts[one.name] for one in family.own]
    for text, adapter in zip(TEXTS, own, strict=True):
        mixed.add(text, adapter)
    for portions in mixed_portions():
        mixed.step(portions)
    for text in range(len(TEXTS)):
        alone = PagedModel(model)
        alone.add(TEXTS[text], own[text])
        alone.step({0: 90})
        expected = family.expected(text)
        assert abs(alone.logits(0).numpy() - expected).max() < TOLERANCE
        assert abs(mixed.logits(text).numpy() - expected).max() < TOLERANCE


def native_logits(
    model: Decoder, texts: list[tuple[list[int], PackedAdapter | None]], steps: list[dict[int, int]], threads: int = 2
) -> list[Array]:
    paged = NativePagedModel(model, pool(threads))
    for text, adapter in texts:
        paged.add(text, adapter)
    for portions in steps:
        paged.step(portions)
    return [paged.logits(index) for index in range(len(texts))]


@needs_library
@pytest.mark.parametrize("quantize", [None, "int4"], ids=["float32", "int4"])
def test_native_is_peft_and_mixed_is_alone(family: Family, quantize: str | None) -> None:
    model, adapters = family.packed(quantize)
    texts = [(text, None if own is None else adapters[own.name]) for text, own in zip(TEXTS, family.own, strict=True)]
    mixed = native_logits(model, texts, mixed_portions())
    for index, text in enumerate(texts):
        alone = native_logits(model, [text], [{0: 90}], threads=1)[0]
        assert np.array_equal(alone, mixed[index])
        if quantize is None:
            assert abs(alone - family.expected(index)).max() < TOLERANCE


@needs_library
def test_adapters_change_what_the_model_says(family: Family) -> None:
    """Else the tests above would pass without them."""
    model, adapters = family.packed()
    base = native_logits(model, [(TEXTS[0], None)], [{0: 90}])[0]
    for adapter in adapters.values():
        assert abs(native_logits(model, [(TEXTS[0], adapter)], [{0: 90}])[0] - base).max() > 0.01


@needs_library
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_head_and_embedding_as_peft_saves_them(name: str, tmp_path: Path) -> None:
    """Beside copies of the tables that it adapts; one table in llama and gemma3, two in mistral."""
    import peft

    folder = tiny_models.make(name, tmp_path / "base")
    torch.manual_seed(0)
    targets = ["q_proj", "lm_head", "embed_tokens"]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False)
    oracle = peft.get_peft_model(tiny_models.oracle(folder), config).eval()
    with torch.inference_mode():
        for parameter_name, parameter in oracle.named_parameters():
            if "lora_" in parameter_name:
                parameter.copy_((0.1 * parameter).half())  # so that no backend rounds it
        expected = oracle(torch.tensor([TEXTS[0]])).logits[0].numpy()
    oracle.save_pretrained(str(tmp_path / "adapter"), save_embedding_layers=True)
    files = hf_folder.read(folder, name)
    model = load(files.spec, open_source(files.weights, files.format), PackedForm(None), context=512)
    adapter = PackedAdapter(read_deltas(named(tmp_path / "adapter"), files.spec), files.spec.num_layers)
    found, plain = (native_logits(model, [(TEXTS[0], one)], [{0: 90}])[0] for one in (adapter, None))
    assert abs(found - expected).max() < TOLERANCE
    assert abs(plain - expected).max() > 0.1


@needs_library
def test_instruction_sets_agree(tmp_path: Path) -> None:
    """To the last bit; `portable` on x86 has no fused multiply-add."""
    loaded = library.native_library()
    before = loaded.penstock_isa()
    found = {}
    try:
        for isa in (b"avx2", b"avx512", b"avx512vnni", b"neon", b"dotprod"):
            if loaded.penstock_select(isa):
                model, adapters = Family("llama", tmp_path / isa.decode()).packed("int8")
                texts = list(zip(TEXTS, adapters.values(), strict=False))
                found[isa] = native_logits(model, texts, [dict.fromkeys(range(len(texts)), 90)])
    finally:
        loaded.penstock_select(before)
    first = next(iter(found.values()))
    assert all(np.array_equal(first, other) for other in found.values())
