"""The numbers of adapters: equal to what PEFT adds to the weights of the base."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import tiny_models
from helpers.adapter_samples import convert_adapter, linear_modules, peft_model, write_adapter
from helpers.model_specs import small_spec
from penstock.errors import ModelInvalid, ModelNotFound
from penstock.model.weights import adapter as adapters
from penstock.model.weights.adapter import SIDES, read_adapter
from penstock.model.weights.place import Shard
from penstock.store.adapter import check_adapter, open_adapter
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec


def peft_deltas(base: Path, folder: Path, spec: ModelSpec) -> dict[tuple[int | None, str], np.ndarray]:
    q, kv, ffn = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.intermediate_size
    fused = {"qkv_proj": (("q", q), ("k", kv), ("v", kv)), "gate_up_proj": (("gate", ffn), ("up", ffn))}
    found: dict[tuple[int | None, str], np.ndarray] = {}
    for name, module in peft_model(base, folder).named_modules():
        if not hasattr(module, "get_delta_weight"):
            continue
        delta, parts = module.get_delta_weight("default").detach().numpy(), name.split(".")
        if "layers" not in parts:
            found[None, "head" if parts[-1] == "lm_head" else "embed"] = delta
            continue
        layer, start = int(parts[parts.index("layers") + 1]), 0
        for projection, size in fused.get(parts[-1], ((parts[-1].removesuffix("_proj"), len(delta)),)):
            found[layer, projection] = delta[start : start + size]
            start += size
    return found


@pytest.mark.parametrize("form", ["peft", "gguf"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "phi3"])
def test_deltas_are_what_peft_adds(family: str, form: str, tmp_path: Path) -> None:
    base = tiny_models.make(family, tmp_path / "base", tie_word_embeddings=False)
    spec = resolve(str(base)).spec
    options: dict[str, Any] = {} if form == "gguf" else {"use_rslora": True, "alpha_pattern": {"down_proj": 3}}
    modules = (*linear_modules(spec), "lm_head", "embed_tokens")
    folder = write_adapter(tmp_path / "adapter", spec, rank=3, alpha=5, modules=modules, **options)
    files = open_adapter(folder if form == "peft" else convert_adapter(folder, tmp_path / "a.gguf", spec))
    check_adapter(files.spec, spec)

    expected, found = peft_deltas(base, folder, spec), {}
    for one in read_adapter(files, spec):
        product = one.b @ one.a * one.scale
        found[one.layer, one.projection] = product.T if one.projection == "embed" else product
    assert found.keys() == expected.keys()
    assert len(found) == 7 * spec.num_layers + 2
    for key, delta in found.items():
        np.testing.assert_allclose(delta, expected[key], rtol=1e-5, atol=1e-6, err_msg=str(key))


def test_files_that_change_after_they_were_opened(tmp_path: Path) -> None:
    spec = small_spec()
    files = open_adapter(write_adapter(tmp_path / "a", spec))
    os.truncate(files.weights, files.weights.stat().st_size - 100)
    with pytest.raises(ModelInvalid, match="truncated"):
        list(read_adapter(files, spec))
    files.weights.unlink()
    with pytest.raises(ModelNotFound, match="no such file") as error:
        list(read_adapter(files, spec))
    assert error.value.param == "adapter"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, size: float, dtype: str) -> None:
    spec = small_spec()
    files = open_adapter(write_adapter(tmp_path / "a", spec, size=size, dtype=dtype))
    for halves in (False, True):
        with pytest.raises(ModelInvalid, match="not finite"):
            list(read_adapter(files, spec, halves=halves))


def test_float16_is_widened(tmp_path: Path) -> None:
    spec = small_spec()
    narrow = open_adapter(write_adapter(tmp_path / "a", spec, dtype="float16"))
    wide = open_adapter(write_adapter(tmp_path / "b", spec))
    for one, other in zip(read_adapter(narrow, spec), read_adapter(wide, spec), strict=True):
        assert one.a.dtype == one.b.dtype == np.float32
        np.testing.assert_allclose(one.b, other.b, rtol=1e-3, atol=1e-6)


def test_float16_can_stay(tmp_path: Path) -> None:
    spec = small_spec()
    files = open_adapter(write_adapter(tmp_path / "a", spec, dtype="float16"))
    for one, other in zip(read_adapter(files, spec, halves=True), read_adapter(files, spec), strict=True):
        assert one.a.dtype == one.b.dtype == np.float16
        assert np.array_equal(one.a, other.a)
        assert np.array_equal(one.b, other.b)


@pytest.mark.parametrize("form", ["peft", "gguf"])
@pytest.mark.parametrize(("family", "world"), [("llama", 2), ("qwen2", 4), ("phi3", 2)])
def test_a_rank_reads_its_share(
    family: str, world: int, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put together the shares are the whole, but for KV heads that several ranks have; nothing else takes memory."""
    base = tiny_models.make(family, tmp_path / "base", vocab_size=tiny_models.VOCAB + 1)
    spec = resolve(str(base)).spec
    modules = (*linear_modules(spec), "lm_head", "embed_tokens")
    folder = write_adapter(tmp_path / "adapter", spec, rank=3, modules=modules, dtype="float16")
    files = open_adapter(folder if form == "peft" else convert_adapter(folder, tmp_path / "a.gguf", spec))
    taken, count = [0], adapters.to_float32

    def counted(values: Any) -> Any:
        taken[0] += values.size
        return count(values)

    monkeypatch.setattr(adapters, "to_float32", counted)
    whole, shares = list(read_adapter(files, spec)), []
    for rank in range(world):
        taken[0] = 0
        shares.append(list(read_adapter(files, spec, shard=Shard(rank, world))))
        assert taken[0] == sum({id(one.a): one.a.size for one in shares[-1]}.values()) + sum(
            one.b.size for one in shares[-1]
        )
    copies = max(1, world // spec.num_kv_heads)
    for one, *parts in zip(whole, *shares, strict=True):
        assert {(part.layer, part.projection, part.scale) for part in parts} == {(one.layer, one.projection, one.scale)}
        some = parts[::copies] if one.projection in ("k", "v") else parts
        outputs, inputs = SIDES[one.projection]
        expected = [(one.a, 1, inputs), (one.b, 0, outputs)]
        for (matrix, axis, extent), split in zip(expected, zip(*((p.a, p.b) for p in some), strict=True), strict=True):
            if extent == "hidden":
                assert all(np.array_equal(part, matrix) for part in split)
            else:
                assert np.array_equal(np.concatenate(split, axis=axis), matrix)
