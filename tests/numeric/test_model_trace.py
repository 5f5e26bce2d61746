"""The model's inside as tracers show it, against transformers: residual stream, attention and logits of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from helpers import tiny_models
from penstock.forward.model_trace import ModelTracer, lazy_trace
from penstock.forward.native_trace import NativeTracer
from penstock.forward.torch_trace import TorchTracer
from penstock.kernels.cpu import library
from penstock.model import PackedForm, load, open_source
from penstock.model.load_dense import load_dense
from penstock.store import hf_folder

TOKENS = [5, 9, 11, 7, 21, 33, 2, 40, 17, 9, 11, 23, 5, 8, 30, 31, 32, 6, 10, 44]
POSITION = 12


def native(folder: Path) -> ModelTracer:
    if library.load() is None:
        pytest.skip("the native library is not built")
    files = hf_folder.read(folder, folder.name)
    source = open_source(files.weights, files.format)
    return NativeTracer(load(files.spec, source, PackedForm(None), context=128))


def in_torch(folder: Path) -> ModelTracer:
    files = hf_folder.read(folder, folder.name)
    source = open_source(files.weights, files.format)
    return TorchTracer(load_dense(files.spec, source, dtype=torch.float32, device=torch.device("cpu"), context=128))


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def expected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tiny_models.make(request.param, tmp_path_factory.mktemp("models") / request.param)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.inference_mode():
        return folder, model(torch.tensor([TOKENS]), output_attentions=True, output_hidden_states=True)


@pytest.mark.parametrize("make", [native, in_torch])
def test_every_layer_is_that_of_transformers(expected: tuple[Path, Any], make: Any) -> None:
    folder, said = expected
    tracer = make(folder)
    for _ in range(2):  # nothing is left of an earlier prompt
        found = [
            (layer.residual.copy(), layer.attention, layer.logits.copy()) for layer in tracer.layers(TOKENS, POSITION)
        ]
        assert len(found) == len(said.hidden_states)
        assert found[0][1] is None
        for place, (residual, attention, _) in enumerate(found):
            if place < len(found) - 1:  # the last of transformers' is behind the final norm
                np.testing.assert_allclose(residual, said.hidden_states[place][0], rtol=2e-3, atol=2e-3)
            if place:
                np.testing.assert_allclose(attention, said.attentions[place - 1][0], atol=2e-3)
        np.testing.assert_allclose(found[-1][2], said.logits[0, POSITION], rtol=5e-3, atol=5e-3)
        list(tracer.layers(TOKENS[::-1], 0))


def test_a_trace_says_what_its_layers_say(expected: tuple[Path, Any]) -> None:
    folder, said = expected
    trace = lazy_trace(lambda: in_torch(folder))
    told = trace(TOKENS, 1, POSITION, lambda: False)
    assert told is not None
    layers = len(said.attentions)
    assert [len(told[name]) for name in ("norms", "values", "lens", "entropy_bits")] == [
        layers + 1, layers + 1, layers + 1, layers,
    ]  # fmt: skip
    np.testing.assert_allclose(told["attention"], said.attentions[1][0], atol=2e-3)
    likeliest = said.logits[0, POSITION].softmax(-1).topk(6)
    assert told["lens"][-1]["tokens"][0] == int(likeliest.indices[0])
    np.testing.assert_allclose(told["lens"][-1]["probs"], likeliest.values, atol=2e-3)
    np.testing.assert_allclose(told["norms"][0], said.hidden_states[0][0].norm(dim=-1), rtol=1e-3)
    assert trace(TOKENS, 1, POSITION, lambda: True) is None  # it was stopped
