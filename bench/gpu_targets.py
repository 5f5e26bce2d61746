"""The shapes that `gpu.py` measures, and what each of its rows is held against."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

COMMON = {"torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False, "head_dim": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "8b": COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "mlp_bias": False,
    },
    "0.6b": COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
}


BYTES_PER_S, OPERATIONS_PER_S = 4.18e12, 660e12  # measured: a product of one row, and a whole model's prefill
SEQUENCES = 512  # concurrent


def mixed_sizes() -> tuple[list[int], list[int]]:
    """Lengths of the 256 prompts and outputs, uniform 100 to 1024."""
    drawn = random.Random(0)
    prompts = []
    for _ in range(256):
        prompts.append(drawn.randint(100, 1024))
        for _ in range(prompts[-1]):
            drawn.randrange(10, 100000)
    return prompts, [drawn.randint(100, 1024) for _ in range(256)]


MIXED = mixed_sizes()


def load_limit(model: str, prompts: list[int], answers: list[int]) -> float:
    """Output tokens per second if prompts cost nothing but products, each drawn token the reading of its KV, and each
    step the reading of the weights; as many steps as the longest answer has tokens, per 512 requests."""
    shape = CONFIGS[model]
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    attention = hidden * (2 * shape["num_attention_heads"] * shape["head_dim"] + 2 * kv)
    weights = layers * (attention + 3 * hidden * shape["intermediate_size"])
    read = sum(out * (size + out / 2) for size, out in zip(prompts, answers, strict=True)) * layers * kv * 4
    steps = max(answers) * -(-len(prompts) // SEQUENCES)
    read += steps * 2 * (weights + hidden * shape["vocab_size"])
    seconds: float = read / BYTES_PER_S + 2 * weights * sum(prompts) / OPERATIONS_PER_S
    return sum(answers) / seconds


@dataclass(frozen=True)
class Target:
    vllm: float | None = None
    limit: float | None = None
    goal: float | None = None


# row -> vLLM 0.26.0's figure, and the limit where there is one: (weights + KV bytes read) / 4.18 TB/s; of whole loads,
# what `load_limit` says
TARGETS: dict[str, dict[str, Target]] = {
    "8b": {
        "start, no compile cache: s": Target(96),
        "start, second: s": Target(65),
        "decode 1, context 128: ms": Target(4.91, 3.60),
        "decode 1, context 4096: ms": Target(5.04, 3.72),
        "prefill 1024: ms": Target(27.9),
        "prefill 4096: ms": Target(94.8),
        "prefill 16384: ms": Target(482.0),
        "prefix hit 8192 + 16: ms": Target(15.6),
        "decode 8, context 512: ms": Target(5.09, 3.73),
        "decode 8, context 2048: ms": Target(5.54, 4.12),
        "decode 32, context 512: ms": Target(5.75, 4.17),
        "decode 32, context 2048: ms": Target(7.27, 5.71),
        "decode 64, context 512: ms": Target(6.68, 4.74),
        "decode 64, context 2048: ms": Target(9.70, 7.83),
        "decode 128, context 512: ms": Target(8.52, 5.90),
        "decode 128, context 2048: ms": Target(14.63, 12.07),
        "decode 256, context 512: ms": Target(13.71, 8.21),
        "256 mixed, temperature 0.0: tok/s": Target(10528, load_limit("8b", *MIXED)),
        "256 mixed, temperature 0.6: tok/s": Target(10514, load_limit("8b", *MIXED)),
        "1000 of 512 in, 256 out: tok/s": Target(10290, load_limit("8b", [512] * 1000, [256] * 1000)),
    },
    "0.6b": {
        "start, no compile cache: s": Target(100),
        "start, second: s": Target(58),
        "decode 1, context 128: ms": Target(1.98, 0.29),
        "decode 1, context 4096: ms": Target(1.84, 0.40),
        "prefill 1024: ms": Target(17.1),
        "prefill 4096: ms": Target(19.4),
        "prefill 16384: ms": Target(87.8),
        "prefix hit 8192 + 16: ms": Target(9.9),
        "decode 8, context 512: ms": Target(2.21, 0.41),
        "decode 8, context 2048: ms": Target(2.12, 0.75),
        "decode 32, context 512: ms": Target(2.57, 0.79),
        "decode 32, context 2048: ms": Target(3.61, 2.14),
        "decode 64, context 512: ms": Target(3.85, 1.30),
        "decode 64, context 2048: ms": Target(5.20, 3.99),
        "decode 128, context 512: ms": Target(6.07, 2.31),
        "decode 128, context 2048: ms": Target(8.98, 7.70),
        "decode 256, context 512: ms": Target(8.20, 4.33),
        "256 mixed, temperature 0.0: tok/s": Target(23386, load_limit("0.6b", *MIXED)),
        "256 mixed, temperature 0.6: tok/s": Target(22019, load_limit("0.6b", *MIXED)),
        "1000 of 512 in, 256 out: tok/s": Target(30290, load_limit("0.6b", [512] * 1000, [256] * 1000)),
    },
    # vLLM with FP8 weights and an FP8 KV cache; a head in 16 bits counts in all limits
    "8b fp8 + fp8 KV": {
        "start, no compile cache: s": Target(150),
        "start, second: s": Target(),
        "decode 1, context 128: ms": Target(3.60, 1.93, 2.5),
        "prefill 4096: ms": Target(65.3, None, 63),
        "decode 8, context 512: ms": Target(3.70, 1.98, 2.8),
        "decode 32, context 512: ms": Target(4.84, 2.2, 3.6),
        "decode 128, context 512: ms": Target(6.95, 3.1, 6.0),
        "decode 128, context 2048: ms": Target(12.2, 6.2, 8.5),
        "256 mixed, temperature 0.0: tok/s": Target(12543, None, 15000),
    },
    "8b fp8": {
        "start, no compile cache: s": Target(150),
        "start, second: s": Target(),
        "decode 1, context 128: ms": Target(3.60, 1.93, 2.5),
        "prefill 4096: ms": Target(65.3, None, 63),
        "decode 8, context 512: ms": Target(3.70, 2.06),
        "decode 32, context 512: ms": Target(4.84, 2.50),
        "decode 128, context 512: ms": Target(6.95, 4.22),
        "256 mixed, temperature 0.0: tok/s": Target(12543),
    },
    "8b int8": {
        "start, no compile cache: s": Target(),
        "start, second: s": Target(),
        "decode 1, context 128: ms": Target(None, 1.96),
        "prefill 4096: ms": Target(),
        "decode 8, context 512: ms": Target(None, 2.09),
        "decode 32, context 512: ms": Target(None, 2.53),
        "decode 128, context 512: ms": Target(None, 4.25),
        "256 mixed, temperature 0.0: tok/s": Target(),
    },
    "8b int4": {
        "start, no compile cache: s": Target(),
        "start, second: s": Target(),
        "decode 1, context 128: ms": Target(None, 1.15, 1.86),
        "prefill 4096: ms": Target(),
        "decode 8, context 512: ms": Target(None, 1.27),
        "decode 32, context 512: ms": Target(None, 1.71),
        "decode 128, context 512: ms": Target(None, 3.44),
        "256 mixed, temperature 0.0: tok/s": Target(),
    },
    "8b bf16 + fp8 KV": {"decode 128, context 2048: ms": Target(None, 7.85, 10.2)},
}
