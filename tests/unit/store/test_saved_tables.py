"""Tables that an adapter has beside its matrices are copies of the base's, or the adapter is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.adapter_samples import write_adapter
from helpers.model_specs import small_spec
from penstock.errors import ModelInvalid, WeightsMismatch
from penstock.settings import load
from penstock.startup.adapters import find_adapters
from penstock.store import saved_tables
from penstock.store.adapter import check_files, open_adapter
from penstock.store.adapter_spec import AdapterFiles
from penstock.store.files import ModelFiles

SPEC = small_spec()
EMBED, HEAD = "base_model.model.model.embed_tokens.base_layer.weight", "base_model.model.lm_head.base_layer.weight"
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def table(seed: int = 0) -> torch.Tensor:
    """With numbers that float16 has as subnormals alone, and a zero of each sign."""
    values = torch.from_numpy(np.random.default_rng(seed).standard_normal((SPEC.vocab_size, SPEC.hidden_size))) * 0.05
    values[0, :4] = torch.tensor([1e-6, -3e-7, 0.0, -0.0])
    return values.float()


def base(folder: Path, dtype: str = "F32", **tables: torch.Tensor) -> ModelFiles:
    """`tables`: embed_tokens, lm_head. Beside them are weights that nobody reads here."""
    folder.mkdir()
    names = {"embed_tokens": "model.embed_tokens.weight", "lm_head": "lm_head.weight"}
    tensors = {names[name]: values.to(TYPES[dtype]) for name, values in tables.items()}
    save_file(tensors | {"model.norm.weight": torch.ones(SPEC.hidden_size)}, folder / "model.safetensors")
    spec = small_spec(tied="lm_head" not in tables)
    return ModelFiles(name="tiny", format="safetensors", weights=(folder / "model.safetensors",), spec=spec)


def adapter(folder: Path, **tables: torch.Tensor) -> AdapterFiles:
    """`tables`: EMBED, HEAD."""
    write_adapter(folder, SPEC, modules=("embed_tokens", "lm_head"))
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path) | tables, path)
    return open_adapter(folder)


@pytest.mark.parametrize("own", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_copies_are_accepted_in_every_type(tmp_path: Path, own: str, dtype: str) -> None:
    files = base(tmp_path / "base", own, embed_tokens=table(), lm_head=table(1))
    copies = {EMBED: table().to(TYPES[own]).to(TYPES[dtype]), HEAD: table(1).to(TYPES[own]).to(TYPES[dtype])}
    check_files(adapter(tmp_path / "style", **copies), files)


@pytest.mark.parametrize("piece_bytes", [1, 1 << 10, 1 << 20])
@pytest.mark.parametrize("row", [0, 37, SPEC.vocab_size - 1])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_trained_table_is_refused_with_its_name_and_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, row: int, dtype: str
) -> None:
    monkeypatch.setattr(saved_tables, "PIECE_BYTES", piece_bytes)
    files = base(tmp_path / "base", "BF16", embed_tokens=table(), lm_head=table(1))
    trained = table(1).bfloat16().to(TYPES[dtype])
    trained[row, 5] *= 1.01
    style = adapter(tmp_path / "style", **{EMBED: table().bfloat16(), HEAD: trained})
    with pytest.raises(WeightsMismatch) as caught:
        check_files(style, files)
    assert caught.value.param == "adapter"
    assert f"adapter style does not fit: its tensor {HEAD} is not the table of tiny" in caught.value.message
    assert f"differ in row {row}:" in caught.value.message


def test_the_head_of_a_tied_base_is_its_embedding(tmp_path: Path) -> None:
    files = base(tmp_path / "base", embed_tokens=table())
    check_files(adapter(tmp_path / "a", **{HEAD: table()}), files)
    with pytest.raises(WeightsMismatch, match=r"lm_head\.base_layer\.weight is not the table"):
        check_files(adapter(tmp_path / "b", **{HEAD: table(1)}), files)


@pytest.mark.parametrize("what", ["gguf", "int8", "none"])
def test_where_the_base_has_no_floats_there_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    files: Any = base(tmp_path / "base", embed_tokens=table())
    if what == "gguf":
        files = ModelFiles(name="tiny", format="gguf", weights=(tmp_path / "nowhere.gguf",), spec=SPEC)
    else:
        tensors = {"model.embed_tokens.weight": table().to(torch.int8)} if what == "int8" else {}
        save_file(tensors | {"model.norm.weight": torch.ones(SPEC.hidden_size)}, files.weights[0])
    with caplog.at_level(logging.WARNING):
        check_files(adapter(tmp_path / "style", **{EMBED: table(1)}), files)
    assert f"adapter style: its tensor {EMBED} is taken for a copy of the table of tiny" in caplog.text


def test_an_adapter_without_tables_reads_nothing_of_the_base(tmp_path: Path) -> None:
    files = ModelFiles(name="tiny", format="safetensors", weights=(tmp_path / "nowhere",), spec=SPEC)
    check_files(open_adapter(write_adapter(tmp_path / "style", SPEC)), files)


def test_a_table_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="has dtype F64"):
        adapter(tmp_path / "style", **{EMBED: table().double()})


def test_the_settings_of_a_server_name_the_adapter(tmp_path: Path) -> None:
    files = base(tmp_path / "base", embed_tokens=table())
    adapter(tmp_path / "style", **{EMBED: table(1)})
    settings = load({"adapters": [f"mine={tmp_path / 'style'}"]}, environ={})
    with pytest.raises(WeightsMismatch, match=r"adapter mine: .*embed_tokens\.base_layer\.weight"):
        find_adapters(settings, files)
