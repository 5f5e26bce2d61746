"""ModelSpec from a Hugging Face `config.json` (and `generation_config.json`), as any version of `transformers` wrote
them. Keys that are not written are filled in as `transformers` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from penstock.errors import ArchitectureUnsupported
from penstock.store.hf_quantization import CONFIG_KEYS, quantization_from_config
from penstock.store.hf_rope import local_rope_from_config, rope_from_config
from penstock.store.spec import ModelSpec
from penstock.store.spec_check import MAX_LAYERS, checked, stretched_context, useful_windows
from penstock.store.values import Values

# `architectures` of a config -> ours
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",  # its text part
    "Phi3ForCausalLM": "phi3",
    "MiMoForCausalLM": "qwen2",  # with MTP layers beside its own
}
# `model_type`, for configs that name no architecture
MODEL_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "mimo": "qwen2",
}

# What an absent key means, where that is not the same for all
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    "gemma3": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    },
    "phi3": {"original_max_position_embeddings": 4096},
}

ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
DTYPES = ("float32", "float16", "bfloat16")
GEMMA3_THETA, GEMMA3_LOCAL_THETA = 1_000_000.0, 10_000.0


def spec_from_config(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None, name: str) -> ModelSpec:
    where = f"config of {name}"
    architecture = _architecture(Values(config, where))
    values = Values({**DEFAULTS[architecture], **_text_part(config, where)}, where)
    _refuse_unsupported(values)
    num_heads = values.integer("num_attention_heads")
    hidden_size = values.integer("hidden_size")
    head_dim = values.integer("head_dim", hidden_size // num_heads)
    context = values.integer("max_position_embeddings")
    vocab_size = values.integer("vocab_size")
    rope = rope_from_config(
        values,
        head_dim=head_dim,
        context=context,
        theta=GEMMA3_THETA if architecture == "gemma3" else 10_000.0,
        yarn_is_longrope=architecture == "phi3",
    )
    dtype = _dtype(values)
    quantization = quantization_from_config(values)
    return checked(
        ModelSpec(
            architecture=architecture,
            name=name,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=values.integer("intermediate_size"),
            num_layers=values.integer("num_hidden_layers", most=MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=values.integer("num_key_value_heads", num_heads),
            head_dim=head_dim,
            context=stretched_context(context, rope),
            norm_eps=values.positive("rms_norm_eps"),
            rope=rope,
            windows=_windows(architecture, values, context),
            tied=values.flag("tie_word_embeddings", False),
            **_biases(architecture, values),
            activation=_activation(values),
            **(
                _gemma3(values, hidden_size, head_dim)
                if architecture == "gemma3"
                else {"attention_scale": head_dim**-0.5}
            ),
            dtype=dtype,
            weights=quantization.label if quantization else dtype,
            quantization=quantization,
            end_tokens=_end_tokens(values, Values(generation_config or {}, f"generation_{where}"), vocab_size),
        ),
        where,
    )


def _architecture(config: Values) -> str:
    named = config.items("architectures")
    known, key = (ARCHITECTURES, str(named[0])) if named else (MODEL_TYPES, config.text("model_type"))
    if key not in known:
        raise ArchitectureUnsupported(
            f"{config.where}: architecture {key} is not supported; supported are {', '.join(ARCHITECTURES)}",
            param="model",
        )
    return known[key]


def _text_part(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The config itself, or the text model's inside a config of text and vision; the outer one has what both share."""
    text = Values(config, where).part("text_config").values
    if not text:
        return dict(config)
    shared = {key: config[key] for key in ("dtype", "torch_dtype", "eos_token_id") if key in config}
    shared |= {key: config[key] for key in CONFIG_KEYS if key in config}
    return {**text, **{key: value for key, value in shared.items() if value is not None}}


def _refuse_unsupported(config: Values) -> None:
    if config.raw("use_bidirectional_attention"):
        raise config.invalid("use_bidirectional_attention", "is not supported: only causal attention is")


def _gemma3(config: Values, hidden_size: int, head_dim: int) -> dict[str, Any]:
    return {
        "local_rope": local_rope_from_config(config, head_dim=head_dim, theta=GEMMA3_LOCAL_THETA),
        "attention_scale": config.positive("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": config.number("attn_logit_softcapping", 0.0),
        "logit_softcap": config.number("final_logit_softcapping", 0.0),
        "embedding_scale": hidden_size**0.5,  # exact here; rounded to the embedding's dtype where it is applied
    }


def _windows(architecture: str, config: Values, context: int) -> tuple[int, ...]:
    num_layers = config.integer("num_hidden_layers", most=MAX_LAYERS)
    window = config.optional_integer("sliding_window", least=1)
    if architecture == "gemma3":
        pattern = config.integer("sliding_window_pattern")
        local = _layer_types(config, num_layers) or [(layer + 1) % pattern != 0 for layer in range(num_layers)]
        return tuple(config.integer("sliding_window") if is_local else 0 for is_local in local)
    if architecture == "llama" or window is None:
        return ()
    if architecture in ("mistral", "phi3"):
        return useful_windows((window,) * num_layers, context)
    if not config.flag("use_sliding_window", False):
        return ()
    first = config.integer("max_window_layers", least=0)
    local = _layer_types(config, num_layers) or [layer >= first for layer in range(num_layers)]
    return useful_windows(tuple(window if is_local else 0 for is_local in local), context)


def _layer_types(config: Values, num_layers: int) -> list[bool]:
    """Which layers have a window; empty if the config does not say."""
    types = config.items("layer_types")
    if types and (len(types) != num_layers or not {"full_attention", "sliding_attention"}.issuperset(types)):
        raise config.invalid("layer_types", f"must name full_attention or sliding_attention for {num_layers} layers")
    return [kind == "sliding_attention" for kind in types]


def _biases(architecture: str, config: Values) -> dict[str, Any]:
    if architecture == "qwen2":
        return {"attention_bias": True}
    if architecture in ("mistral", "phi3"):
        return {}
    bias = config.flag("attention_bias", False)
    return {
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": architecture == "llama" and config.flag("mlp_bias", False),
    }


def _activation(config: Values) -> Literal["silu", "gelu_tanh"]:
    key = "hidden_activation" if config.raw("hidden_activation") else "hidden_act"
    name = config.text(key, "silu")
    if name not in ACTIVATIONS:
        raise config.invalid(key, f"{name!r} is not supported ({', '.join(ACTIVATIONS)} are)")
    return ACTIVATIONS[name]


def _dtype(config: Values) -> str:
    name = config.text("dtype", config.text("torch_dtype", "float32")).removeprefix("torch.")
    if name not in DTYPES:
        raise config.invalid("dtype", f"{name!r} is not supported ({', '.join(DTYPES)} are)")
    return name


def _end_tokens(config: Values, generation: Values, vocab_size: int) -> tuple[int, ...]:
    written = generation if generation.raw("eos_token_id") is not None else config
    return _token_ids(written, "eos_token_id", vocab_size)


def _token_ids(config: Values, key: str, vocab_size: int) -> tuple[int, ...]:
    """One id or a list of them. Small models keep ids of their family's larger vocabulary; those can never occur."""
    value = config.raw(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise config.invalid(key, f"must be a token id or a list of them, got {value!r}")
    return tuple(token for token in ids if 0 <= token < vocab_size)
