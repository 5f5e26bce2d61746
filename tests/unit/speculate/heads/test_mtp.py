"""MTP layers in the layout of MiMo: read beside the model's own layers, and computed as transformers' Qwen2 layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm, Qwen2RotaryEmbedding

from helpers import draft_heads
from helpers.draft_heads import HIDDEN, VOCAB, Drawn, target_spec
from penstock.errors import ModelInvalid
from penstock.model import PackedForm, load, open_source
from penstock.speculate.heads.chain import ChainHead, HeadSequence
from penstock.speculate.heads.mtp import read_mtp
from penstock.store.files import ModelFiles
from penstock.store.resolve import resolve

PREFIX = "model.mtp_layers.0."
TOKENS = np.random.default_rng(5).integers(0, VOCAB, 9)


def make(folder: Path, change: draft_heads.Tensors | None = None, **config: Any) -> ModelFiles:
    tensors = draft_heads.mtp_tensors(PREFIX)
    tensors["model.layers.0.mlp.up_proj.weight"] = Drawn(7).matrix(4, 4)  # of the model itself: not looked at
    fields = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1} | config
    draft_heads.write(folder, fields, tensors if change is None else change)
    spec = target_spec(architecture="qwen2", attention_bias=True)
    return ModelFiles(name="tiny", format="safetensors", weights=(folder / "model.safetensors",), spec=spec)


@torch.inference_mode()
def test_features_are_those_of_a_qwen2_layer(tmp_path: Path) -> None:
    files = make(tmp_path)
    spec, weights = read_mtp(files)
    assert (spec.kind, spec.taps) == ("mtp", ())
    embedding, output = Drawn(8).matrix(VOCAB, HIDDEN) * 4, Drawn(9).matrix(VOCAB, HIDDEN)
    head = ChainHead(spec, weights, embedding, output, context=32)
    given = np.random.default_rng(6).standard_normal((len(TOKENS), HIDDEN)).astype(np.float32)
    found = head.extend(HeadSequence(spec), TOKENS, given)

    tensors = load_file(files.weights[0])
    own = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        module = Qwen2RMSNorm(HIDDEN, eps=files.spec.norm_eps)
        module.load_state_dict({"weight": own.pop(f"{name}.weight")})
        return module(x)

    config = Qwen2Config(**{**draft_heads.CONFIG, "rms_norm_eps": files.spec.norm_eps, "attn_implementation": "eager"})
    parts = (
        norm("hidden_layernorm", torch.from_numpy(given)),
        norm("token_layernorm", torch.from_numpy(embedding[TOKENS])),
    )
    x = torch.cat(parts, dim=-1) @ own.pop("input_proj.weight").T
    final = own.pop("final_layernorm.weight")
    layer = Qwen2DecoderLayer(config, 0)
    layer.load_state_dict(own)
    mask = torch.full((len(x), len(x)), -torch.inf).triu(1)[None, None]
    places = Qwen2RotaryEmbedding(config)(x[None], torch.arange(len(x))[None])
    out = layer(x[None], attention_mask=mask, position_embeddings=places)
    own["final_layernorm.weight"] = final
    expected = norm("final_layernorm", (out[0] if isinstance(out, tuple) else out)[0])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(head.logits(found), expected.numpy() @ output.T, atol=5e-5)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("model.layers.0.mlp.up_proj.weight",), "tiny has no MTP layers"),
        (("model.layers.61.eh_proj.weight",), "latent attention or experts"),
        (("mtp.fc.weight",), "gated attention"),
    ],
)
def test_what_is_not_supported(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    change = {name: np.ones((2, 2), np.float32) for name in names}
    with pytest.raises(ModelInvalid, match=words):
        read_mtp(make(tmp_path, change))


def test_there_must_be_such_a_layer(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="tiny has 1 MTP layers, there is no layer 1"):
        read_mtp(make(tmp_path), 1)
    gguf = ModelFiles(name="tiny", format="gguf", weights=(tmp_path / "model.gguf",), spec=target_spec())
    with pytest.raises(ModelInvalid, match="from safetensors only"):
        read_mtp(gguf)


def test_a_model_loads_beside_its_mtp_layers(tmp_path: Path) -> None:
    sizes = draft_heads.OF_TINY_MODELS
    files = resolve(str(draft_heads.with_mtp(tmp_path)))
    assert files.spec.architecture == "qwen2"
    load(files.spec, open_source(files.weights, files.format), PackedForm(), context=32)
    spec, head = read_mtp(files)
    assert spec.hidden_size == sizes.hidden
    assert head.layers[0].gate.weight.shape == (sizes.ffn, sizes.hidden)
    assert head.layers[0].q.bias is not None
