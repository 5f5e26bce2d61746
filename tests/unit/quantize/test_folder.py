"""Quantized folders: the engine reads what was written, and calibrated formats lose less than rounding."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers import tiny_models
from helpers.paged_model import run_alone
from penstock.errors import InvalidSetting, ModelInvalid
from penstock.model import open_source
from penstock.model.load_dense import load_dense
from penstock.quantize import folder, shards
from penstock.quantize.formats import Target, grid
from penstock.quantize.round_codes import round_to_nearest
from penstock.quantize.round_rows import ROW_FORMATS, store_rows
from penstock.store.hf_folder import read
from penstock.store.safetensors import read_header

# Tokens of few kinds, so that some input channels are large
CHUNKS = [random.Random(seed).choices(range(2, 40), k=64) for seed in range(8)]
PROMPT = random.Random(99).choices(range(2, 40), k=60)


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3", "phi3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make(request.param, tmp_path_factory.mktemp("model") / request.param)


def logits(path: Path) -> Tensor:
    files = read(path, "tiny")
    source = open_source(files.weights, files.format, files.spec.quantization)
    loaded = load_dense(files.spec, source, dtype=torch.float32, device=torch.device("cpu"), context=128)
    return run_alone(loaded, PROMPT, (len(PROMPT),))


def quantize(model: Path, out: Path, target: Target, group: int | None = None, calibrated: bool = True) -> Path:
    seen: list[str] = []
    if group is None:
        group = 0 if target in ROW_FORMATS else 32
    size = folder.quantize_folder(
        read(model, "tiny"),
        out,
        target,
        group=group,
        text=lambda: CHUNKS if calibrated else [],
        progress=lambda what, *_: seen.append(what),
    )
    assert size == sum(
        entry.end - entry.begin for path in out.glob("*.safetensors") for entry in read_header(path).values()
    )
    assert seen
    return out


def test_formats(model: Path, tmp_path: Path) -> None:
    exact = logits(model)

    def divergence(target: Target, group: int | None = None, calibrated: bool = True) -> float:
        found = logits(quantize(model, tmp_path / f"{target}-{group}-{calibrated}", target, group, calibrated))
        return float(
            torch.nn.functional.kl_div(
                found.log_softmax(1), exact.log_softmax(1), log_target=True, reduction="batchmean"
            )
        )

    errors = {target: divergence(target) for target in ("int4", "gptq", "awq", "int8", "fp8")}
    nearest = divergence("int4", calibrated=False)
    assert errors["int8"] < errors["fp8"] < errors["int4"] < nearest
    assert errors["gptq"] == pytest.approx(errors["int4"], rel=1e-3)  # stored otherwise
    assert errors["awq"] < nearest
    assert divergence("int8", 32) < errors["fp8"]


def test_a_scaled_model_is_the_same_function(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a grid so fine that rounding does not show, only AWQ's factors are left, and they cancel."""
    monkeypatch.setattr(folder, "_store", lambda target, weight, inputs, group: {"weight": weight})
    monkeypatch.setattr(folder, "config", lambda target, group: None)
    out = quantize(model, tmp_path / "out", "awq")
    changed = {name for path in out.glob("*.safetensors") for name in read_header(path)}
    assert any("norm" in name for name in changed)
    assert (logits(out) - logits(model)).abs().max() < 1e-3


def test_several_files(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logits(quantize(model, tmp_path / "one", "int4"))
    monkeypatch.setattr(shards, "SHARD_BYTES", 20_000)
    out = quantize(model, tmp_path / "several", "int4")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert logits(out).equal(whole)


def test_what_cannot_be_quantized(tmp_path: Path) -> None:
    model = tiny_models.make("qwen2", tmp_path / "model", num_hidden_layers=1)
    done = quantize(model, tmp_path / "done", "int8")
    with pytest.raises(ModelInvalid, match="compressed-tensors int8: only a Hugging Face folder of floats"):
        quantize(done, tmp_path / "again", "fp8")
    with pytest.raises(InvalidSetting, match="exists already") as caught:
        quantize(model, done, "fp8")
    assert caught.value.param == "out"
    with pytest.raises(
        InvalidSetting, match="group 64 does not divide intermediate_size of tiny, which is 96"
    ) as caught:
        quantize(model, tmp_path / "odd", "gptq", group=64)
    assert caught.value.param == "group"
    refused: tuple[tuple[Target, int, str], ...] = (("fp8", 32, "takes no group"), ("int4", 0, "needs a group"))
    for target, group, message in refused:
        with pytest.raises(InvalidSetting, match=message):
            quantize(model, tmp_path / "odd", target, group)
    assert not (tmp_path / "odd").exists()


@pytest.mark.parametrize("target", ["int8", "fp8"])
def test_a_text_makes_8_bits_better(target: Target) -> None:
    """Columns make up for each other's rounding, and no scale is worse than the one that reaches the largest weight."""
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(400, 64, generator=torch.Generator().manual_seed(1)) @ torch.randn(64, 64)
    hessian, form = inputs.T @ inputs, ROW_FORMATS[target]

    def stored(hessian: Tensor | None) -> Tensor:
        tensors = store_rows(form, weight, hessian)
        assert tensors["weight"].dtype == form.dtype
        return tensors["weight"].float() * tensors["weight_scale"]

    def error(found: Tensor) -> float:
        return float((inputs @ (found - weight).T).square().sum())

    reaching = weight.abs().amax(dim=1, keepdim=True) / form.largest
    nearest = form.nearest(weight / reaching) * reaching
    assert (stored(None) - weight).square().sum() <= 1.001 * (nearest - weight).square().sum()
    assert error(stored(hessian)) < 0.6 * error(nearest)


def test_groups_make_8_bits_better() -> None:
    """Without a text: their scales reach only the largest of some weights."""
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(0))
    by_row = store_rows(ROW_FORMATS["int8"], weight, None)
    by_group = round_to_nearest(weight, grid("int8", 32)).floats()
    rows = by_row["weight"].float() * by_row["weight_scale"]
    assert (by_group - weight).square().sum() < 0.6 * (rows - weight).square().sum()
