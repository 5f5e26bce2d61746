"""Tiny random models of every supported family, made by transformers: what numeric and end-to-end tests run on.

    folder = tiny_models.make("qwen3", tmp_path / "qwen3")
    oracle = tiny_models.oracle(folder)  # transformers' own, float32

Weights are drawn wide enough that attention is far from uniform, norm weights and biases are not ones and zeros, and
every mistake in the wiring shows in the logits. Same family, same overrides: same weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FAMILIES = ("llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "phi3-longrope")
VOCAB = 320  # 2 special tokens, 256 bytes, 62 pairs of letters
END_TOKEN = 1
WINDOW = 24  # of the layers that have one
# At 5,000 tok/s, a usual rate of these models, ENDLESS_TOKENS take about 20 s: long enough for a test to cancel them.
# They fit in 100 MB of KV cache in any dtype.
LONG_CONTEXT, ENDLESS_TOKENS = 100_000, 90_000

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)

# As Qwen 3 has it: the answer begins within a thought, or behind an empty one.
THINKING_TEMPLATE = CHAT_TEMPLATE.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    "{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": END_TOKEN,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}

_OVERRIDES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "mistral": {"sliding_window": WINDOW, "head_dim": 24},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "gemma3": {
        "num_hidden_layers": 4,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "tie_word_embeddings": True,
    },
    "phi3": {"sliding_window": WINDOW},
    "phi3-longrope": {
        "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.0, 2.0, 4.0, 8.0],
        },
    },
}


def make_thinking(folder: Path) -> Path:
    """A model that thinks aloud."""
    make("llama", folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": THINKING_TEMPLATE}))
    return folder


def make(family: str, folder: Path, *, seed: int = 0, max_shard_size: str = "5GB", **overrides: Any) -> Path:
    """Save a model of `family` with its tokenizer to `folder`; `overrides` are fields of transformers' config."""
    import torch
    import transformers

    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "llama3": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
        "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
        "phi3-longrope": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    }[family]
    model = model_class(config_class(**(_COMMON | _OVERRIDES[family] | overrides)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("bias"):
                parameter.copy_(noise * 0.5)
            elif parameter.dim() == 1:  # norms; Gemma's are around 0, the others' around 1
                parameter.copy_(noise * 0.2 + (0.0 if family == "gemma3" else 1.0))
            elif "embed" in name:
                parameter.copy_(noise * (0.15 if family == "gemma3" else 0.3))  # Gemma multiplies it by 8
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
    model.generation_config = transformers.GenerationConfig(bos_token_id=0, eos_token_id=END_TOKEN)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    save_tokenizer(folder)
    return folder


def oracle(folder: Path) -> Any:
    """transformers' model from `folder`, in float32, ready to run."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def save_tokenizer(folder: Path) -> None:
    """Byte-level BPE over all bytes and some pairs of letters, so that any text and any token id is valid."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = ["<s>", "</s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(first, second) for first in "etaoinsrh" for second in "etaoinsr"][: VOCAB - len(special) - len(letters)]
    words = special + letters + [first + second for first, second in pairs]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
