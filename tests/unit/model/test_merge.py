"""Merged weights are those of PEFT's merge_and_unload, and give the same logits as the adapter beside the base."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from helpers import tiny_gguf, tiny_models
from helpers.adapter_samples import convert_adapter, linear_modules, peft_model, write_adapter
from penstock.errors import InvalidSetting, ModelInvalid
from penstock.model.merge import merge
from penstock.store.adapter import open_adapter
from penstock.store.resolve import resolve

TOKENS = torch.tensor([[5, 9, 200, 33, 7, 41]])


def quiet(done: int, count: int) -> None: ...


@pytest.mark.parametrize("form", ["peft", "gguf"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3"])
def test_merged_weights_are_those_of_peft(family: str, form: str, tmp_path: Path) -> None:
    base = tiny_models.make(family, tmp_path / "base", max_shard_size="100KB")
    files = resolve(str(base))
    folder = write_adapter(tmp_path / "adapter", files.spec, alpha=6, modules=linear_modules(files.spec))
    source = folder if form == "peft" else convert_adapter(folder, tmp_path / "a.gguf", files.spec)
    size = merge(files, open_adapter(source), tmp_path / "out", quiet)
    merged = load_file(tmp_path / "out" / "model.safetensors")
    expected = peft_model(base, folder).merge_and_unload().state_dict()
    assert size == sum(tensor.nbytes for tensor in merged.values())
    assert merged.keys() <= expected.keys()
    for name, tensor in merged.items():
        np.testing.assert_allclose(tensor, expected[name].numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_head_and_embedding_of_a_tied_model_part(tmp_path: Path) -> None:
    """What the adapter adds to the head is not added to the embedding, nor the other way round."""
    base = tiny_models.make("llama", tmp_path / "base", tie_word_embeddings=True)
    files = resolve(str(base))
    assert files.spec.tied
    folder = write_adapter(tmp_path / "adapter", files.spec, modules=("q_proj", "lm_head", "embed_tokens"))
    merge(files, open_adapter(folder), tmp_path / "out", quiet)
    assert not resolve(str(tmp_path / "out")).spec.tied
    with torch.no_grad():
        expected = peft_model(base, folder)(TOKENS).logits
        found = tiny_models.oracle(tmp_path / "out")(TOKENS).logits
        assert (found - tiny_models.oracle(base)(TOKENS).logits).abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_is_rounded_to_nearest(tmp_path: Path) -> None:
    base = tiny_models.make("llama", tmp_path / "base")
    model = tiny_models.oracle(base).to(torch.bfloat16)
    model.save_pretrained(base)
    files = resolve(str(base))
    folder = write_adapter(tmp_path / "adapter", files.spec, modules=("down_proj",))
    merge(files, open_adapter(folder), tmp_path / "out", quiet)
    name = "model.layers.0.mlp.down_proj.weight"
    wide = tiny_models.oracle(base)
    wide.load_state_dict(model.float().state_dict())
    import peft

    expected = peft.PeftModel.from_pretrained(wide, str(folder)).merge_and_unload().state_dict()[name].bfloat16()
    found = tiny_models.oracle(tmp_path / "out").state_dict()[name].bfloat16()
    assert (found == expected).float().mean() > 0.999  # sums in another order may round the other way
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    base = tiny_models.make("llama", tmp_path / "base")
    files = resolve(str(base))
    adapter = open_adapter(write_adapter(tmp_path / "adapter", files.spec))
    gguf = resolve(str(tiny_gguf.convert(base, tmp_path / "base.gguf")), cache=tmp_path / "cache")
    with pytest.raises(ModelInvalid, match="Hugging Face folder of floats only; serve it beside"):
        merge(gguf, adapter, tmp_path / "out", quiet)
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidSetting, match="exists already"):
        merge(files, adapter, tmp_path / "there", quiet)
    adapter.weights.unlink()
    with pytest.raises(Exception, match="no such file"):
        merge(files, adapter, tmp_path / "out", quiet)
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == []
