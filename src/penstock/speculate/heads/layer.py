"""The weights of a decoder layer of a head, by the names that all formats share with Hugging Face's Llama."""

from __future__ import annotations

from penstock.kernels.arrays import Array
from penstock.speculate.heads.checkpoint import HeadCheckpoint
from penstock.speculate.heads.weights import LayerWeights, Projection
from penstock.store.spec import ModelSpec


def read_layer(
    checkpoint: HeadCheckpoint, prefix: str, spec: ModelSpec, *, input_size: int | None = None
) -> LayerWeights:
    """`prefix`: "layers.0."; `input_size`: of the attention, if it reads more than the residual stream."""
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def projection(name: str, rows: int, columns: int) -> Projection:
        return read_projection(checkpoint, f"{prefix}{name}", rows, columns)

    def norm(name: str) -> Array | None:
        return checkpoint.optional_floats(f"{prefix}{name}.weight", (hidden,))

    return LayerWeights(
        input_norm=norm("input_layernorm"),
        feature_norm=norm("hidden_norm"),
        q=projection("self_attn.q_proj", q, input_size or hidden),
        k=projection("self_attn.k_proj", kv, input_size or hidden),
        v=projection("self_attn.v_proj", kv, input_size or hidden),
        output=projection("self_attn.o_proj", hidden, q),
        mlp_norm=checkpoint.floats(f"{prefix}post_attention_layernorm.weight", (hidden,)),
        gate=projection("mlp.gate_proj", ffn, hidden),
        up=projection("mlp.up_proj", ffn, hidden),
        down=projection("mlp.down_proj", hidden, ffn),
    )


def read_projection(checkpoint: HeadCheckpoint, name: str, rows: int, columns: int) -> Projection:
    """With its bias where there is one."""
    return Projection(
        checkpoint.floats(f"{name}.weight", (rows, columns)), checkpoint.optional_floats(f"{name}.bias", (rows,))
    )
