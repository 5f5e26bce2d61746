"""Rotary embedding from a Hugging Face config: in the old spelling (`rope_theta`, `rope_scaling`), and in the new one
(`rope_parameters`, which may be a mapping per type of layer). What is not written is filled in as `transformers` does.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from penstock.store.spec import Rope
from penstock.store.values import Values


def rope_from_config(
    config: Values, *, head_dim: int, context: int, theta: float = 10_000.0, yarn_is_longrope: bool = False
) -> Rope:
    """The rope of all layers, or of those with full attention where windowed ones have their own."""
    parameters = config.part("rope_scaling" if config.raw("rope_scaling") else "rope_parameters")
    if parameters.raw("full_attention") is not None:
        parameters = parameters.part("full_attention")
    share = parameters.positive("partial_rotary_factor", config.positive("partial_rotary_factor", 1.0))
    plain = Rope(
        theta=parameters.positive("rope_theta", config.positive("rope_theta", theta)),
        dim=int(head_dim * share),
    )
    original = config.integer(
        "original_max_position_embeddings", parameters.integer("original_max_position_embeddings", context), least=2
    )
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind == "su" or (kind == "yarn" and yarn_is_longrope):
        kind = "longrope"
    match kind:
        case "default":
            return plain
        case "linear":
            return replace(plain, kind="linear", factor=parameters.positive("factor"))
        case "llama3":
            return _llama3(parameters, plain, original)
        case "yarn":
            return _yarn(parameters, plain, original, context)
        case "longrope":
            return _longrope(parameters, plain, original, context)
    raise parameters.invalid("rope_type", f"{kind!r} is not supported (default, linear, llama3, yarn and longrope are)")


def local_rope_from_config(config: Values, *, head_dim: int, theta: float) -> Rope:
    """The rope of Gemma 3's windowed layers, which is never stretched."""
    parameters = config.part("rope_parameters").part("sliding_attention")
    kind = parameters.text("rope_type", "default")
    if kind != "default":
        raise parameters.invalid("rope_type", f"{kind!r} is not supported for layers with a window")
    return Rope(
        theta=parameters.positive("rope_theta", config.positive("rope_local_base_freq", theta)),
        dim=head_dim,
    )


def _llama3(parameters: Values, plain: Rope, original: int) -> Rope:
    return replace(
        plain,
        kind="llama3",
        factor=parameters.positive("factor"),
        original_context=original,
        low_freq_factor=parameters.positive("low_freq_factor"),
        high_freq_factor=parameters.positive("high_freq_factor"),
    )


def _yarn(parameters: Values, plain: Rope, original: int, context: int) -> Rope:
    if not parameters.flag("truncate", True):
        raise parameters.invalid("truncate", "false is not supported")
    factor = parameters.positive("factor", context / original)
    attention = yarn_attention(factor)
    if parameters.raw("mscale") and parameters.raw("mscale_all_dim"):
        attention = yarn_attention(factor, parameters.positive("mscale"))
        attention /= yarn_attention(factor, parameters.positive("mscale_all_dim"))
    return replace(
        plain,
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=parameters.positive("beta_fast", 32.0),
        beta_slow=parameters.positive("beta_slow", 1.0),
        attention_factor=parameters.positive("attention_factor", attention),
    )


def _longrope(parameters: Values, plain: Rope, original: int, context: int) -> Rope:
    factor = parameters.positive("factor", context / original)
    return replace(
        plain,
        kind="longrope",
        factor=factor,
        original_context=original,
        attention_factor=parameters.positive("attention_factor", longrope_attention(factor, original)),
        short_factors=parameters.numbers("short_factor"),
        long_factors=parameters.numbers("long_factor"),
    )


def yarn_attention(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_attention(factor: float, original: int) -> float:
    return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original))
