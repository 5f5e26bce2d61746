"""Hypothesis strategies: model shapes and devices of all sizes, for property tests of the capacity planner."""

from __future__ import annotations

import hypothesis.strategies as st

from penstock.capacity.device import Device
from penstock.capacity.shape import Shape, plain_vectors


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    layers = draw(st.integers(1, 130))
    kv_heads = draw(st.integers(1, 64))
    hidden = draw(st.integers(1, 20_000))
    windowed = draw(st.integers(0, layers))
    return Shape(
        name="any",
        layers=layers,
        hidden=hidden,
        intermediate=draw(st.integers(1, 60_000)),
        heads=kv_heads * draw(st.integers(1, 16)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from((32, 64, 80, 128, 256))),
        vocab=draw(st.integers(256, 300_000)),
        context=draw(st.integers(1, 1_000_000)),
        tied=draw(st.booleans()),
        window=draw(st.integers(1, 8192)) if windowed else 0,
        windowed_layers=windowed,
        vectors=plain_vectors(layers, hidden),
    )


@st.composite
def devices(draw: st.DrawFn) -> Device:
    return Device(
        name="any",
        label="any",
        memory_bytes=draw(st.floats(1e9, 1e12)),
        bandwidth_bytes_s=draw(st.floats(1e9, 1e13)),
        flops=draw(st.floats(1e10, 1e16)),
        link_bytes_s=draw(st.floats(1e9, 1e12)),
    )
