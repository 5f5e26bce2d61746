"""`tools/train_draft.py` from text to checkpoint, on a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import train_draft
from draft_training.eagle import Eagle1
from draft_training.save import save_eagle1
from draft_training.target import Target
from draft_training.trainer import llama_spec
from helpers import tiny_models
from penstock.speculate.heads.eagle import read_eagle
from penstock.speculate.heads.medusa import read_medusa
from penstock.store.resolve import resolve


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("model"), num_hidden_layers=6)


@torch.inference_mode()
def test_hidden_states_are_those_of_transformers(model: Path) -> None:
    taps = (2, 3, 5)
    target = Target(resolve(str(model)), taps=taps, context=32, device=torch.device("cpu"))
    oracle = tiny_models.oracle(model)
    sequences = [[5, 9, 200, 31, 7], list(range(40, 60))]
    for tokens, found in zip(sequences, target.hidden_states(sequences), strict=True):
        out = oracle.model(torch.tensor([tokens]), output_hidden_states=True)
        expected = [out.last_hidden_state[0], *(out.hidden_states[tap][0] for tap in taps)]
        for place, states in enumerate(expected):
            torch.testing.assert_close(found[:, place], states, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(target.embedding, oracle.model.embed_tokens.weight)
    own = target.layer_tensors(4)
    expected = {name: tensor for name, tensor in oracle.model.layers[4].state_dict().items() if "rotary" not in name}
    assert own.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(own[name], tensor)


def test_text_to_checkpoints(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "questions.jsonl"
    texts.write_text("".join(json.dumps({"prompt": f"question number {n}"}) + "\n" for n in range(12)))
    given = [str(texts), "--target", str(model), "--output", str(tmp_path / "out"), "--kinds", "eagle,medusa,model"]
    given += ["--invented", "2", "--max-tokens", "10", "--draft-vocabulary", "64", "--epochs", "1", "--threads", "1"]
    train_draft.main(given)
    first = capsys.readouterr().out
    assert "10 prompts for training, 2 held out" in first
    assert "train eagle: epoch 1 of 1" in first
    target = resolve(str(model)).spec
    spec, _ = read_eagle(tmp_path / "out/eagle", target)
    assert (spec.kind, spec.draft_vocab_size) == ("eagle", 64)
    assert read_medusa(tmp_path / "out/medusa", target)[0].num_heads == 4
    assert resolve(str(tmp_path / "out/model")).spec.num_layers == 2
    facts = json.loads((tmp_path / "out/eagle/training.json").read_text())
    assert len(facts["acceptance"]["served"]["joint"]) == 4

    train_draft.main(given)  # finds everything in the work folder
    again = capsys.readouterr().out
    assert "generate" not in again
    assert "train eagle: epoch" not in again
    assert [line[10:] for line in again.splitlines() if "joint" in line] == [
        line[10:] for line in first.splitlines() if "joint" in line
    ]


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "phi3-longrope"])
def test_heads_are_llama_layers_whatever_the_target_is(family: str, tmp_path: Path) -> None:
    """The config that is saved must say what the head computes."""
    target = resolve(str(tiny_models.make(family, tmp_path / "target"))).spec
    spec = llama_spec(target, 1)
    head = Eagle1(spec, torch.zeros(4, spec.hidden_size))
    save_eagle1(tmp_path / "head", head, spec, torch.arange(4), {})
    layers = read_eagle(tmp_path / "head", target)[0].layers
    for field in ("num_heads", "num_kv_heads", "head_dim", "rope", "attention_scale", "norm_eps", "context"):
        assert getattr(layers, field) == getattr(spec, field)


def test_unknown_kinds_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train_draft.main(["a.txt", "--kinds", "eagle,hydra"])
    assert "--kinds: unknown hydra" in capsys.readouterr().err
