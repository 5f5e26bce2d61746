"""penstock quantize: what is asked for is checked before anything is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers import tiny_models
from penstock.cli.calibration_text import start_token
from penstock.cli.quantize import CALIBRATED, TARGETS, _default_group, quantize
from penstock.errors import InvalidSetting, OutOfMemory
from penstock.quantize import formats
from penstock.quantize.calibrate import hessian_bytes
from penstock.store.hf_folder import read
from penstock.store.safetensors import read_header


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(quantize, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.output


def test_the_choices_are_those_of_the_formats() -> None:
    """Repeated, so that --help need not import torch."""
    assert tuple(formats.TARGETS) == TARGETS
    assert formats.CALIBRATED == CALIBRATED


def test_a_text_calibrates(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("the tree has one hundred and three rings, and the stone is near the house. " * 40)
    shown = run(model, tmp_path / "out", "--to", "gptq", "--text", text, "--group", "32")
    assert "calibrating" in shown
    assert "gptq" in shown.splitlines()[-1]
    assert read(tmp_path / "out", "tiny").spec.weights == "gptq int4"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "gptq needs a text"), ("too short", "tokens; --text needs"), (b"\xff", "not UTF-8")]
)
def test_texts_that_do_not_do(model: Path, tmp_path: Path, content: str | bytes | None, message: str) -> None:
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidSetting, match=message) as caught:
        run(model, tmp_path / "out", "--to", "gptq", "--text", "none" if content is None else text)
    assert caught.value.param == "text"
    assert not (tmp_path / "out").exists()


def test_a_text_that_changes_nothing_is_refused(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.touch()
    with pytest.raises(InvalidSetting, match="q4_0 is rounded to nearest: it takes no --text") as caught:
        run(model, tmp_path / "out.gguf", "--to", "q4_0", "--text", text)
    assert caught.value.param == "text"


def without(model: Path, to: Path, *names: str) -> Path:
    """A copy of the model without its tokenizer, and without entries of its config."""
    shutil.copytree(model, to)
    for path in (*to.glob("tokenizer*"), to / "generation_config.json"):
        path.unlink()
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key not in names}))
    return to


def codes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_without_a_text_the_model_writes_one(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no tokenizer, is the same each time, whatever a server's variables say, and differs from rounding to
    nearest."""
    bare = without(model, tmp_path / "bare")
    shown = [run(bare, tmp_path / "one", "--to", "fp8")]
    for name, value in (("HOST", "0.0.0.0"), ("LOAD_FORMAT", "dummy"), ("QUANTIZE", "int4")):
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    shown.append(run(bare, tmp_path / "two", "--to", "fp8"))
    assert all("writing a text 32/32" in one and "calibrating 32/32" in one for one in shown)
    assert "fp8, calibrated on a text that the model wrote, " in shown[0].splitlines()[-1]
    nearest = run(bare, tmp_path / "nearest", "--to", "fp8", "--text", "none")
    assert "fp8, rounded to nearest, " in nearest
    assert "calibrating" not in nearest
    assert codes(tmp_path / "one") == codes(tmp_path / "two") != codes(tmp_path / "nearest")


def test_a_model_without_a_token_to_start_from(model: Path, tmp_path: Path) -> None:
    mute = without(model, tmp_path / "mute", "bos_token_id", "eos_token_id")
    shown = run(mute, tmp_path / "out", "--to", "fp8")
    assert "mute names no token that begins or ends a text" in shown
    assert "fp8, rounded to nearest, " in shown.splitlines()[-1]
    for target, *options in (["awq"], ["int8", "--text", "own"]):
        with pytest.raises(
            InvalidSetting, match=rf"begins or ends a text, .*: {target} needs a file as --text"
        ) as caught:
            run(mute, tmp_path / "awq", "--to", target, *options)
        assert caught.value.param == "text"
        assert not (tmp_path / "awq").exists()


def test_integers_are_calibrated_when_asked_for(model: Path, tmp_path: Path) -> None:
    for target in ("int8", "int4"):
        nearest = run(model, tmp_path / target, "--to", target, "--group", "16")
        assert f"{target} in groups of 16, rounded to nearest, " in nearest.splitlines()[-1]
        own = run(model, tmp_path / f"{target}-own", "--to", target, "--group", "16", "--text", "own")
        assert "calibrated on a text that the model wrote" in own.splitlines()[-1]
        assert codes(tmp_path / target) != codes(tmp_path / f"{target}-own")


def test_calibration_that_does_not_fit_into_memory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read(model, "tiny").spec
    inputs = 2 * spec.hidden_size**2 + (spec.num_heads * spec.head_dim) ** 2 + spec.intermediate_size**2
    assert hessian_bytes(spec) == 4 * spec.num_layers * inputs
    monkeypatch.setattr("penstock.cli.quantize.host_bytes", lambda: hessian_bytes(spec))  # none is left for the weights
    shown = run(model, tmp_path / "out", "--to", "fp8")
    assert "are free: fp8 is rounded to nearest" in shown
    assert "calibrating" not in shown
    for target, *options in (["gptq"], ["fp8", "--text", "own"]):
        with pytest.raises(OutOfMemory, match=r"calibration of .* takes .* of memory, and .* are free") as caught:
            run(model, tmp_path / "none", "--to", target, *options)
        assert caught.value.param == "text"
        assert not (tmp_path / "none").exists()


def test_a_text_begins_with_the_bos_token(model: Path, tmp_path: Path) -> None:
    files = read(model, "tiny")
    assert start_token(files) == json.loads((model / "config.json").read_text())["bos_token_id"]
    ended = read(without(model, tmp_path / "ended", "bos_token_id"), "tiny")
    assert start_token(ended) == ended.spec.end_tokens[0]


@pytest.mark.parametrize("target", ["int8", "q8_0"])
def test_a_full_disk_leaves_nothing(model: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.quantize.folder._copy_files", full)
    monkeypatch.setattr("penstock.quantize.gguf_model._check", full)
    with pytest.raises(InvalidSetting, match=r"cannot write .*out\.gguf: No space left on device"):
        run(model, tmp_path / "out.gguf", "--to", target, "--text", "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["fp8", "q4_0"])
def test_formats_that_take_no_group(model: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{target} has a scale for .*: it takes no --group") as caught:
        run(model, tmp_path / "out.gguf", "--to", target, "--group", "32")
    assert caught.value.param == "group"


def test_int8_has_a_scale_for_each_row_or_group(model: Path, tmp_path: Path) -> None:
    options = ("--to", "int8", "--text", "none", "--group")
    assert "int8, " in run(model, tmp_path / "rows", *options, "0")
    assert "int8 in groups of 16, " in run(model, tmp_path / "groups", *options, "16")
    headers = [read_header(tmp_path / name / "model.safetensors") for name in ("rows", "groups")]
    rows, groups = (header["model.layers.0.mlp.down_proj.weight_scale"].shape for header in headers)
    assert rows == (rows[0], 1)
    assert groups == (rows[0], read(model, "tiny").spec.intermediate_size // 16)


@pytest.mark.parametrize(
    ("sizes", "target", "group"),
    [
        ({}, "int8", 32),  # of the MLP's 96 inputs; 64 does not divide them
        ({}, "int4", 32),
        ({"intermediate_size": 128}, "int8", 64),
        ({"intermediate_size": 128}, "gptq", 64),
        ({"intermediate_size": 72}, "int8", 0),
        ({}, "fp8", 0),
    ],
)
def test_the_group_that_divides_all_sizes(tmp_path: Path, sizes: dict[str, int], target: str, group: int) -> None:
    model = tiny_models.make("llama", tmp_path, num_hidden_layers=1, **sizes)
    assert _default_group(read(model, "tiny").spec, target) == group


def test_a_group_is_not_tiny(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="a group has at least 8 inputs") as caught:
        run(model, tmp_path / "out", "--to", "int8", "--group", "4")
    assert caught.value.param == "group"
