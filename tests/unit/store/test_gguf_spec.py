from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.store_samples import CONTROL, LLAMA, NORMAL, TOKENIZER, VOCAB, as_architecture, write_gguf
from penstock.errors import ArchitectureUnsupported, ModelInvalid
from penstock.store.gguf import read_header
from penstock.store.gguf_spec import spec_from_header
from penstock.store.spec import ModelSpec, Rope

TABLE = {"token_embd.weight": np.zeros((40, 64), np.float16)}


def make(
    folder: Path,
    architecture: str = "llama",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> ModelSpec:
    values = (as_architecture(architecture) if metadata is None else metadata) | TOKENIZER
    path = write_gguf(folder / "x.gguf", architecture, values, TABLE | (tensors or {}))
    return spec_from_header(read_header(path), path, "x")


def test_llama(tmp_path: Path) -> None:
    assert make(tmp_path) == ModelSpec(
        architecture="llama",
        name="x",
        vocab_size=40,  # the embedding table's, which may have more rows than there are tokens
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        context=128,
        norm_eps=1e-5,
        rope=Rope(theta=100_000.0, dim=16),
        tied=True,
        attention_scale=0.25,
        dtype="float16",
        weights="F16",
        table_types={"F16": 40 * 64},
        end_tokens=(2, 0),  # the eos, then <|endoftext|>
    )


def test_optional_keys_have_defaults(tmp_path: Path) -> None:
    metadata = as_architecture("llama", attention__head_count_kv=None, rope__freq_base=None, rope__dimension_count=None)
    spec = make(tmp_path, metadata=metadata)
    assert spec.num_kv_heads == 4
    assert spec.rope == Rope(theta=10_000.0, dim=16)


def test_tensors_tell_of_biases_and_untied_output(tmp_path: Path) -> None:
    bias = np.zeros(64, np.float32)
    spec = make(tmp_path, "qwen2", tensors={"output.weight": TABLE["token_embd.weight"], "blk.0.attn_q.bias": bias})
    assert (spec.architecture, spec.tied, spec.attention_bias, spec.output_bias) == ("qwen2", False, True, False)


def test_how_much_is_in_which_type(tmp_path: Path) -> None:
    layers = {
        "blk.0.attn_q.weight": np.zeros((64, 64), np.float32),
        "blk.0.ffn_up.weight": np.zeros((96, 64), np.float16),
        "blk.1.ffn_up.weight": np.zeros((96, 64), np.float16),
        "blk.0.attn_norm.weight": np.zeros(64, np.float32),
    }
    spec = make(tmp_path, tensors={**layers, "output.weight": np.zeros((40, 64), np.float32)})
    assert spec.matrix_types == {"F32": 64 * 64, "F16": 2 * 96 * 64}
    assert spec.table_types == {"F16": 40 * 64, "F32": 40 * 64}


def test_head_size_of_its_own(tmp_path: Path) -> None:
    spec = make(tmp_path, "qwen3", as_architecture("qwen3", attention__key_length=32, rope__dimension_count=None))
    assert (spec.head_dim, spec.rope.dim) == (32, 32)
    assert spec.attention_scale == 32**-0.5


def test_window_of_all_layers(tmp_path: Path) -> None:
    assert make(tmp_path, metadata=as_architecture("llama", attention__sliding_window=32)).windows == (32, 32)
    assert make(tmp_path, metadata=as_architecture("llama", attention__sliding_window=128)).windows == ()
    assert make(tmp_path, metadata=as_architecture("llama", attention__sliding_window=0)).windows == ()


def gemma3(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "block_count": 7,
        "attention__key_length": 32,
        "attention__sliding_window": 512,
        "rope__dimension_count": None,
        "rope__freq_base": 1e6,
    }
    return as_architecture("gemma3", **values | changes)


def test_gemma3(tmp_path: Path) -> None:
    spec = make(tmp_path, "gemma3", gemma3(rope__scaling__type="linear", rope__scaling__factor=8.0))
    assert spec.windows == (512, 512, 512, 512, 512, 0, 512)  # longer than the context, but they say which rope
    assert spec.rope == Rope(theta=1e6, dim=32, kind="linear", factor=8.0)
    assert spec.local_rope == Rope(theta=1e4, dim=32)
    assert (spec.activation, spec.embedding_scale, spec.attention_scale) == ("gelu_tanh", 8.0, 32**-0.5)


def test_gemma3_27b_scales_attention_by_its_width(tmp_path: Path) -> None:
    assert make(tmp_path, "gemma3", gemma3(block_count=62)).attention_scale == 16**-0.5


def test_gemma3_without_windows_has_one_rope(tmp_path: Path) -> None:
    spec = make(tmp_path, "gemma3", gemma3(attention__sliding_window=None))
    assert (spec.windows, spec.local_rope) == ((), None)


def test_llama3_factors_come_from_their_tensor(tmp_path: Path) -> None:
    factors = np.array([1, 1, 1, 1, 1.5, 2.5, 8, 8], np.float32)
    rope = make(tmp_path, tensors={"rope_freqs.weight": factors}).rope
    assert (rope.kind, rope.long_factors) == ("llama3", tuple(factors.tolist()))


def test_phi3_long_context(tmp_path: Path) -> None:
    short, long = np.full(6, 1.5, np.float32), np.full(6, 3.0, np.float32)
    tensors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    metadata = as_architecture("phi3", rope__dimension_count=12, rope__scaling__original_context_length=32)
    rope = make(tmp_path, "phi3", metadata, tensors).rope
    assert (rope.kind, rope.dim, rope.original_context, rope.factor) == ("longrope", 12, 32, 4.0)
    assert (rope.short_factors, rope.long_factors) == ((1.5,) * 6, (3.0,) * 6)
    assert rope.attention_factor == math.sqrt(1 + math.log(4) / math.log(32))
    given = make(tmp_path, "phi3", metadata | {"phi3.rope.scaling.attn_factor": 1.25}, tensors).rope
    assert given.attention_factor == 1.25


def test_yarn(tmp_path: Path) -> None:
    metadata = as_architecture(
        "qwen2", rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=128
    )
    spec = make(tmp_path, "qwen2", metadata)
    assert (spec.rope.kind, spec.rope.factor, spec.rope.original_context) == ("yarn", 4.0, 128)
    assert spec.rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert spec.context == 512


def test_end_tokens(tmp_path: Path) -> None:
    tokens = ["<bos>", "<eos>", "<end_of_turn>", "<|im_end|>", "a", "b"]
    vocabulary = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL],
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 4,
    }
    path = write_gguf(tmp_path / "x.gguf", "llama", LLAMA | vocabulary, TABLE)
    spec = spec_from_header(read_header(path), path, "x")
    assert spec.end_tokens == (1, 4, 2)  # a normal token that looks like an end is none


def test_label_is_what_most_of_the_layers_are_in(tmp_path: Path) -> None:
    """Not the embedding table, which is most of a small model and often kept in a finer type."""
    layer = {"blk.0.ffn_up.weight": np.zeros((8, 64), np.float32), "blk.0.ffn_norm.weight": np.zeros(64, np.float16)}
    spec = make(tmp_path, tensors=layer)
    assert (spec.weights, spec.dtype) == ("F32", "float32")


def test_a_vocabulary_alone_counts_its_tokens(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", tensors={})
    assert spec_from_header(read_header(path), path, "x").vocab_size == len(VOCAB)


@pytest.mark.parametrize("architecture", ["mamba", "gemma2"])
def test_unsupported_architecture_names_the_supported_ones(architecture: str, tmp_path: Path) -> None:
    with pytest.raises(ArchitectureUnsupported, match=f"{architecture} is not supported.*llama, qwen2, qwen3"):
        make(tmp_path, architecture)


@pytest.mark.parametrize(
    "key", ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention__head_count"]
)
def test_missing_keys_are_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=f"llama.{key.replace('__', '.')} is missing"):
        make(tmp_path, metadata=as_architecture("llama", **{key: None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_count": 8}, "mixtures of experts are not supported"),
        ({"attention__causal": False}, "only causal attention"),
        ({"attention__head_count_kv": [2, 4]}, "head_count_kv must be an integer"),
        ({"attention__head_count_kv": 3}, "cannot share 3 key-value heads"),
        ({"block_count": 2**31}, "block_count must be an integer in"),
        ({"context_length": "long"}, "context_length must be an integer"),
        ({"rope__dimension_count": 7}, "even number"),
        ({"rope__freq_base": 0.0}, "freq_base must be above 0"),
        ({"rope__scaling__type": "dynamic"}, "scaling.type 'dynamic' is not supported"),
        ({"rope__scaling__type": "longrope"}, "scaling.type 'longrope' is not supported here"),
    ],
)
def test_what_cannot_be_honoured_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=message):
        make(tmp_path, metadata=as_architecture("llama", **changes))


def test_split_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="split GGUF files are not supported"):
        make(tmp_path, metadata=LLAMA | {"split.count": 2})


@pytest.mark.parametrize(
    "factors", [np.ones(8, np.float16), np.zeros(8, np.float32), np.full(8, np.nan, np.float32), np.ones(4, np.float32)]
)
def test_bad_rope_factors(factors: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"rope_freqs\.weight must|need 8 factors, got 4"):
        make(tmp_path, tensors={"rope_freqs.weight": factors})
