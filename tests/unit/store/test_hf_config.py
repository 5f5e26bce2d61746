from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma3Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from penstock.errors import ArchitectureUnsupported, ModelInvalid
from penstock.store.hf_config import spec_from_config
from penstock.store.spec import ModelSpec, Rope

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 3e-6,
    "bos_token_id": 5,
    "eos_token_id": 6,
}
FAMILIES: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma3": Gemma3TextConfig,
    "phi3": Phi3Config,
}
# config.json of a Llama as written before transformers 5
OLD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "rope_theta": 500_000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    **SIZES,
}


def saved(config: PretrainedConfig, folder: Path) -> dict[str, Any]:
    """config.json as transformers writes it, which is not what `to_dict` gives."""
    config.save_pretrained(folder)
    return dict(json.loads((folder / "config.json").read_text()))


def make(tmp_path: Path, family: str, **changes: Any) -> tuple[ModelSpec, PretrainedConfig]:
    config = FAMILIES[family](**SIZES | changes)
    return spec_from_config(saved(config, tmp_path), None, family), config


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_agrees_with_transformers(family: str, tmp_path: Path) -> None:
    spec, config = make(tmp_path, family)
    assert spec.architecture == family
    head_dim = getattr(config, "head_dim", None) or 16
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (1000, 64, 96)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (7, 4, 2, head_dim)
    assert (spec.context, spec.norm_eps) == (512, 3e-6)
    assert spec.tied == config.tie_word_embeddings
    assert spec.end_tokens == (6,)
    assert spec.activation == ("gelu_tanh" if family == "gemma3" else "silu")
    assert spec.attention_bias == (family == "qwen2")
    assert not spec.output_bias
    assert spec.rope == Rope(theta=1e6 if family == "gemma3" else 1e4, dim=head_dim)


def test_defaults_of_a_family_are_those_of_transformers() -> None:
    """A config that leaves a key out means what the class of its family means."""
    sparse = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    spec = spec_from_config({"model_type": "gemma3", "text_config": sparse}, None, "gemma")
    config = Gemma3TextConfig(**sparse)
    assert spec.vocab_size == config.vocab_size
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (8, 4, 256)
    assert (spec.context, spec.tied, spec.norm_eps) == (config.max_position_embeddings, True, config.rms_norm_eps)
    assert spec.attention_scale == config.query_pre_attn_scalar**-0.5
    required = {key: value for key, value in OLD.items() if key not in ("num_key_value_heads", "architectures")}
    for family, kv_heads in (("llama", 4), ("mistral", 8), ("phi3", 4)):
        values = {**required, "model_type": family, "num_attention_heads": 4 if kv_heads == 4 else 8}
        assert spec_from_config(values, None, family).num_kv_heads == kv_heads


def test_old_and_new_spelling_mean_the_same(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = spec_from_config({**OLD, "rope_scaling": scaling}, None, "x")
    config = LlamaConfig(**SIZES, rope_parameters={**scaling, "rope_theta": 500_000.0}, tie_word_embeddings=True)
    config.dtype = "bfloat16"
    new = spec_from_config(saved(config, tmp_path), None, "x")
    assert old == new
    assert old.dtype == old.weights == "bfloat16"
    assert old.rope == Rope(
        theta=500_000.0,
        dim=16,
        kind="llama3",
        factor=8.0,
        original_context=64,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )


def test_llama_biases() -> None:
    spec = spec_from_config({**OLD, "attention_bias": True, "mlp_bias": True}, None, "x")
    assert (spec.attention_bias, spec.output_bias, spec.mlp_bias) == (True, True, True)


@pytest.mark.parametrize("family", ["mistral", "phi3"])
@pytest.mark.parametrize(("window", "expected"), [(32, (32,) * 7), (None, ()), (512, ()), (511, (511,) * 7)])
def test_window_of_all_layers(family: str, window: int | None, expected: tuple[int, ...], tmp_path: Path) -> None:
    spec, _ = make(tmp_path, family, sliding_window=window)
    assert spec.windows == expected  # a window no sequence outgrows is none


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_windows_only_when_switched_on(family: str, tmp_path: Path) -> None:
    off, _ = make(tmp_path, family, sliding_window=32, max_window_layers=3)
    assert off.windows == ()
    on, _ = make(tmp_path, family, sliding_window=32, max_window_layers=3, use_sliding_window=True)
    assert on.windows == (0, 0, 0, 32, 32, 32, 32)
    old = {**OLD, "architectures": None, "model_type": family, "head_dim": 16, "use_sliding_window": True}
    assert spec_from_config({**old, "sliding_window": 32, "max_window_layers": 5}, None, "x").windows[4:] == (0, 32, 32)


def test_gemma3_alternates(tmp_path: Path) -> None:
    spec, config = make(tmp_path, "gemma3", sliding_window=32, query_pre_attn_scalar=144, final_logit_softcapping=30.0)
    assert spec.windows == (32, 32, 32, 32, 32, 0, 32)
    assert [window > 0 for window in spec.windows] == [kind == "sliding_attention" for kind in config.layer_types]
    assert spec.local_rope == Rope(theta=1e4, dim=256)
    assert spec.attention_scale == 1 / 12
    assert spec.embedding_scale == 8.0
    assert (spec.logit_softcap, spec.attention_softcap) == (30.0, 0.0)


def test_gemma3_keeps_windows_longer_than_its_context(tmp_path: Path) -> None:
    """The layers with a window are also those with the local rope."""
    spec, _ = make(tmp_path, "gemma3", sliding_window=4096)
    assert spec.windows[:6] == (4096,) * 5 + (0,)


def test_gemma3_of_the_hub() -> None:
    """As published: old spelling, the text part inside, linear scaling of the global layers alone."""
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "rope_theta": 1e6,
            "rope_local_base_freq": 12345.0,
            "sliding_window": 1024,
            "sliding_window_pattern": 3,
        },
        "vision_config": {"hidden_size": 1152},
    }
    spec = spec_from_config(config, None, "x")
    assert spec.architecture == "gemma3"
    assert spec.rope == Rope(theta=1e6, dim=256, kind="linear", factor=8.0)
    assert spec.local_rope == Rope(theta=12345.0, dim=256)
    assert spec.windows[:4] == (1024, 1024, 0, 1024)
    assert (spec.end_tokens, spec.dtype) == ((1, 106), "bfloat16")


def test_gemma3_with_vision_saved_by_transformers(tmp_path: Path) -> None:
    config = Gemma3Config(text_config={**SIZES, "sliding_window": 32})
    spec = spec_from_config(saved(config, tmp_path), None, "x")
    assert (spec.num_layers, spec.windows[5:]) == (7, (0, 32))


@pytest.mark.parametrize("given", [{}, {"attention_factor": 1.5}, {"mscale": 0.7, "mscale_all_dim": 1.1}])
def test_yarn(given: dict[str, float], tmp_path: Path) -> None:
    parameters = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 512}
    spec, config = make(tmp_path, "qwen2", rope_parameters={**parameters, **given})
    assert (spec.rope.kind, spec.rope.factor, spec.rope.original_context) == ("yarn", 4.0, 512)
    assert spec.rope.attention_factor == pytest.approx(ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")[1])
    assert spec.context == 2048  # config.json still says 512


@pytest.mark.parametrize("kind", ["su", "longrope", "yarn"])
def test_longrope(kind: str, tmp_path: Path) -> None:
    factors = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 2.0, 4.0, 8.0]}
    old = {
        **OLD,
        "architectures": ["Phi3ForCausalLM"],
        "rope_scaling": {"type": kind, **factors},
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 0.5,
    }
    spec = spec_from_config(old, None, "x")
    assert spec.rope.kind == "longrope"
    assert (spec.rope.dim, spec.head_dim) == (8, 16)
    assert spec.rope.short_factors == tuple(factors["short_factor"])
    assert spec.rope.long_factors == tuple(factors["long_factor"])
    assert spec.rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(64)))
    config = Phi3Config(
        **SIZES,
        pad_token_id=0,
        original_max_position_embeddings=64,
        rope_parameters={"rope_type": "longrope", "rope_theta": 5e5, "partial_rotary_factor": 0.5, **factors},
    )
    new = spec_from_config(saved(config, tmp_path), None, "x")
    assert new.rope == spec.rope
    assert new.rope.attention_factor == pytest.approx(ROPE_INIT_FUNCTIONS["longrope"](config, "cpu")[1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.sampled_from(["rope_type", "factor"]), items),
    max_leaves=4,
)
KEYS = [*OLD, "head_dim", "rope_parameters", "layer_types", "sliding_window", "text_config", "quantization_config"]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=2))
def test_no_value_of_any_key_gets_past_as_another_error(family: str, changes: dict[str, Any]) -> None:
    with suppress(ModelInvalid):
        spec_from_config({**OLD, "architectures": None, "model_type": family, **changes}, changes, "x")


def test_end_tokens() -> None:
    assert spec_from_config({**OLD, "eos_token_id": [3, 4]}, None, "x").end_tokens == (3, 4)
    assert spec_from_config(OLD, {"eos_token_id": [7, 8]}, "x").end_tokens == (7, 8)
    assert spec_from_config(OLD, {"eos_token_id": 9}, "x").end_tokens == (9,)
    assert spec_from_config(OLD, {}, "x").end_tokens == (6,)
    assert spec_from_config({**OLD, "eos_token_id": None}, None, "x").end_tokens == ()
    outside = [6, 32_000]  # the latter of the vocabulary
    assert spec_from_config({**OLD, "eos_token_id": outside}, None, "x").end_tokens == (6,)


def test_unsupported_architecture_names_the_supported_ones() -> None:
    for changes in ({"architectures": ["MambaForCausalLM"]}, {"architectures": [], "model_type": "mamba"}):
        with pytest.raises(ArchitectureUnsupported, match=r"[mM]amba.*LlamaForCausalLM.*Phi3ForCausalLM"):
            spec_from_config({**OLD, **changes}, None, "x")
    with pytest.raises(ArchitectureUnsupported, match="LlamaForSequenceClassification"):
        spec_from_config({**OLD, "architectures": ["LlamaForSequenceClassification"]}, None, "x")


@pytest.mark.parametrize(
    "key",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps"],
)
def test_missing_keys_are_named(key: str) -> None:
    with pytest.raises(ModelInvalid, match=f"{key} is missing"):
        spec_from_config({name: value for name, value in OLD.items() if name != key}, None, "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": None, "model_type": None}, "model_type is missing"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        ({"hidden_size": "64"}, "hidden_size must be an integer"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"num_attention_heads": 0}, "num_attention_heads must be an integer in"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be an integer in"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"hidden_act": "relu6"}, "hidden_act 'relu6' is not supported"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ({"quantization_config": {"quant_method": "hqq"}}, r"quantization_config.quant_method 'hqq' is not supported"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 3}},
            "quantization_config.bits must be 4 or 8, got 3",
        ),
        ({"quantization_config": 4}, "quantization_config must be a mapping"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling must be a mapping"),
        ({"rope_theta": 0}, "rope_theta must be above 0"),
        ({"head_dim": 15}, "rotary dimensions must be an even number"),
        ({"partial_rotary_factor": 2.0}, "rotary dimensions must be an even number up to the head's 16"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "16 rotary dimensions need 8 factors, got 1",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": ["1"] * 8}},
            "long_factor must be a list of numbers",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False}}, "truncate false is not supported"),
        ({"model_type": "gemma3", "architectures": None, "layer_types": ["full_attention"]}, "layer_types must name"),
        ({"model_type": "gemma3", "architectures": None, "sliding_window": None}, "sliding_window is missing"),
        (
            {"model_type": "gemma3_text", "architectures": None, "use_bidirectional_attention": True},
            "only causal attention",
        ),
    ],
)
def test_what_cannot_be_honoured_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelInvalid, match=message) as caught:
        spec_from_config({**OLD, **changes}, None, "x")
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("changes", "scheme"),
    [
        ({}, ""),
        ({"kv_cache_scheme": None}, ""),
        ({"kv_cache_scheme": "static"}, "fp8"),  # AutoFP8
        ({"kv_cache_scheme": "dynamic"}, ""),
        ({"kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}}, "fp8"),
        ({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, "int8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),  # ModelOpt
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
    ],
)
def test_what_a_checkpoint_has_static_scales_for(changes: dict[str, Any], scheme: str) -> None:
    config = {**OLD, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static", **changes}}
    quantization = spec_from_config(config, None, "x").quantization
    assert quantization is not None
    assert quantization.kv_scheme == scheme


def test_the_key_of_early_compressed_tensors() -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    described = {"format": "int-quantized", "config_groups": {"group_0": {"weights": weights}}}
    for config in ({"compression_config": described}, {"quantization_config": None, "compression_config": described}):
        assert spec_from_config({**OLD, **config}, None, "x").weights == "compressed-tensors int8"
