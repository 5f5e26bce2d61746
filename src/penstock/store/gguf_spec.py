"""ModelSpec from the header of a GGUF file. What its metadata leaves out is derived from its tensors, or known of the
architecture."""

from __future__ import annotations

import struct
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.errors import ArchitectureUnsupported, ModelInvalid
from penstock.store.gguf import Header
from penstock.store.hf_rope import longrope_attention, yarn_attention
from penstock.store.spec import ModelSpec, Rope
from penstock.store.spec_check import MAX_LAYERS, checked, stretched_context, useful_windows
from penstock.store.values import Values

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "phi3")  # Mistral models call themselves llama here
GEMMA3_LOCAL_THETA = 10_000.0
GEMMA3_PATTERN = 6  # five layers with a window, then one without
GEMMA3_27B_LAYERS = 62  # the one size whose attention is not scaled by the head's dimensions

CONTROL_TOKEN = 3  # in tokenizer.ggml.token_type
# Tokens that end a turn or a text in every vocabulary that has them; files often name only one as their eos.
END_TOKENS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|end_of_text|>")
)


def spec_from_header(header: Header, path: Path, name: str) -> ModelSpec:
    """`path` is the file itself: rotary factors are a (small) tensor of it."""
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        raise ArchitectureUnsupported(
            f"{path}: architecture {architecture or 'unknown'} is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}",
            param="model",
        )
    everything = Values(header.metadata, str(path))
    values = _part(header, path)
    _refuse_unsupported(everything, values)
    num_heads, hidden_size = values.integer("attention.head_count"), values.integer("embedding_length")
    head_dim = values.integer("attention.key_length", hidden_size // num_heads)
    context = values.integer("context_length")
    rope = _rope(header, path, values, head_dim, context)
    windows = _windows(architecture, values, context)
    vocab_size = _vocab_size(header, everything)
    return checked(
        ModelSpec(
            architecture=architecture,
            name=name,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=values.integer("feed_forward_length"),
            num_layers=values.integer("block_count", most=MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=values.integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            context=stretched_context(context, rope),
            norm_eps=float(f"{values.positive('attention.layer_norm_rms_epsilon'):.7g}"),  # 1e-05, not its float32
            rope=rope,
            windows=windows,
            tied="output.weight" not in header.tensors,
            **_biases(header),
            **(_gemma3(values, windows) if architecture == "gemma3" else {"attention_scale": head_dim**-0.5}),
            **_weights(header),
            end_tokens=_end_tokens(everything, vocab_size),
        ),
        str(path),
    )


def _part(header: Header, path: Path) -> Values:
    """The metadata under the architecture's name."""
    prefix = f"{header.architecture}."
    part = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    return Values(part, str(path), prefix)


def _refuse_unsupported(everything: Values, values: Values) -> None:
    if (everything.optional_integer("split.count") or 1) > 1:
        raise everything.invalid("split.count", "is above 1: split GGUF files are not supported, merge them first")
    if values.optional_integer("expert_count"):
        raise values.invalid("expert_count", "is not 0: mixtures of experts are not supported")
    if not values.flag("attention.causal", True):
        raise values.invalid("attention.causal", "is false: only causal attention is supported")


def _vocab_size(header: Header, everything: Values) -> int:
    """Rows of the embedding table; a file without one (a vocabulary, a test's) has its tokens to count."""
    table = header.tensors.get("token_embd.weight")
    rows = table.shape[0] if table else len(everything.items("tokenizer.ggml.tokens"))
    if not rows:
        raise everything.invalid("token_embd.weight", "is missing, and so are tokens")
    return rows


def _rope(header: Header, path: Path, values: Values, head_dim: int, context: int) -> Rope:
    plain = Rope(
        theta=values.positive("rope.freq_base", 10_000.0), dim=values.integer("rope.dimension_count", head_dim)
    )
    if "rope_freqs.weight" in header.tensors:
        return replace(plain, kind="llama3", long_factors=_floats(header, path, "rope_freqs.weight"))
    original = values.integer("rope.scaling.original_context_length", context, least=2)
    if "rope_factors_long.weight" in header.tensors:
        factor = context / original
        return replace(
            plain,
            kind="longrope",
            factor=factor,
            original_context=original,
            attention_factor=values.positive("rope.scaling.attn_factor", longrope_attention(factor, original)),
            short_factors=_floats(header, path, "rope_factors_short.weight"),
            long_factors=_floats(header, path, "rope_factors_long.weight"),
        )
    factor = values.number("rope.scaling.factor", values.number("rope.scale_linear", 1.0)) or 1.0
    kind = values.text("rope.scaling.type", "linear")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return plain
    if kind == "linear":
        return replace(plain, kind="linear", factor=factor)
    if kind != "yarn":
        raise values.invalid("rope.scaling.type", f"{kind!r} is not supported here (none, linear and yarn are)")
    return replace(
        plain,
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=values.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=values.positive("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=values.positive("rope.scaling.yarn_attn_factor", yarn_attention(factor))
        * values.positive("rope.scaling.attn_factor", 1.0),
    )


def _floats(header: Header, path: Path, name: str) -> tuple[float, ...]:
    """The values of a small tensor."""
    info = header.tensors.get(name)
    if info is None or info.type.name != "F32" or info.num_bytes > 1 << 20:
        raise ModelInvalid(f"{path}: tensor {name} must be a small F32 tensor", param="model")
    with path.open("rb") as file:
        file.seek(info.offset)
        values: tuple[float, ...] = struct.unpack(f"<{prod(info.shape)}f", file.read(info.num_bytes))
    if not all(0 < value < float("inf") for value in values):
        raise ModelInvalid(f"{path}: tensor {name} must hold numbers above 0", param="model")
    return values


def _windows(architecture: str, values: Values, context: int) -> tuple[int, ...]:
    num_layers = values.integer("block_count", most=MAX_LAYERS)
    window = values.optional_integer("attention.sliding_window")
    if not window:
        return ()
    if architecture != "gemma3":
        return useful_windows((window,) * num_layers, context)
    pattern = values.integer("attention.sliding_window_pattern", GEMMA3_PATTERN)
    return tuple(window if (layer + 1) % pattern else 0 for layer in range(num_layers))


def _biases(header: Header) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors or "blk.0.attn_qkv.bias" in header.tensors,
        "output_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
    }


def _gemma3(values: Values, windows: tuple[int, ...]) -> dict[str, Any]:
    hidden_size, num_heads = values.integer("embedding_length"), values.integer("attention.head_count")
    head_dim = values.integer("attention.key_length", hidden_size // num_heads)
    largest = values.integer("block_count") == GEMMA3_27B_LAYERS
    theta = values.positive("rope.freq_base_swa", GEMMA3_LOCAL_THETA)
    return {
        "local_rope": Rope(theta=theta, dim=head_dim) if windows else None,
        "activation": "gelu_tanh",
        "attention_scale": (hidden_size // num_heads if largest else head_dim) ** -0.5,
        "logit_softcap": values.number("final_logit_softcapping", 0.0),
        "embedding_scale": hidden_size**0.5,
    }


def _weights(header: Header) -> dict[str, Any]:
    """The type most of the layers' weights are in, and the dtype to run in: quantized models were made in bfloat16.
    And how much is in which type, since files mix them."""
    sizes: Counter[str] = Counter()
    matrices: Counter[str] = Counter()
    tables: Counter[str] = Counter()
    for name, info in header.tensors.items():
        in_layer, count = name.startswith("blk."), prod(info.shape)
        sizes[info.type.name] += count if in_layer else 1
        if len(info.shape) == 2:
            (matrices if in_layer else tables)[info.type.name] += count
    label = sizes.most_common(1)[0][0] if sizes else ""
    return {
        "weights": label,
        "dtype": {"F32": "float32", "F16": "float16"}.get(label, "bfloat16"),
        "matrix_types": dict(matrices),
        "table_types": dict(tables),
    }


def _token_ids(everything: Values, kinds: tuple[str, ...], vocab_size: int) -> list[int]:
    ids = [everything.optional_integer(f"tokenizer.ggml.{kind}_token_id") for kind in kinds]
    return [token for token in ids if token is not None and token < vocab_size]


def _end_tokens(everything: Values, vocab_size: int) -> tuple[int, ...]:
    tokens, types = everything.items("tokenizer.ggml.tokens"), everything.items("tokenizer.ggml.token_type")
    known = [
        token
        for token, (text, kind) in enumerate(zip(tokens[:vocab_size], types, strict=False))
        if kind == CONTROL_TOKEN and text in END_TOKENS
    ]
    return tuple(dict.fromkeys([*_token_ids(everything, ("eos", "eot", "eom"), vocab_size), *known]))
