"""Shape: the numbers of a model that capacity depends on, and presets of well-known ones."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.capacity.formats import FORMATS, Format, coded, packed
from penstock.store.spec import ModelSpec

# How a quantized Hugging Face checkpoint stores its linear layers -> the nearest format
QUANTIZED = {"int4": "int4-g128", "nvfp4": "int4-g128", "int8": "int8", "fp8": "fp8", "mixed": "int8"}  # no key: floats


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    tied: bool = False  # the output projection is the embedding table
    window: int = 0  # tokens that a windowed layer looks back
    windowed_layers: int = 0
    vectors: int = 0  # parameters that are no matrices: norms and biases
    stored: str = "bfloat16"  # the format of its weights on disk
    mixtures: dict[Literal["cpu", "gpu"], Format] = {}  # what `stored` really is in this file, by who keeps it

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer's matrices: q and o, k and v, gate, up and down."""
        attention = 2 * self.heads + 2 * self.kv_heads
        return self.hidden * (attention * self.head_dim + 3 * self.intermediate)

    @property
    def table(self) -> int:
        """Parameters of the embedding table, and of the output projection."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        tables = 1 if self.tied else 2
        return self.layers * self.layer_matrices + tables * self.table + self.vectors

    def format(self, name: str, kind: Literal["cpu", "gpu"]) -> Format:
        """As such a device keeps it: weights stay as they are stored, and files mix formats."""
        return self.mixtures.get(kind, FORMATS[name]) if name == self.stored else FORMATS[name]

    def seen(self, tokens: float) -> float:
        """Positions that a query at position `tokens` sees, added up over the layers."""
        return (self.layers - self.windowed_layers) * tokens + self.windowed_layers * min(tokens, self.window)


def plain_vectors(layers: int, hidden: int) -> int:
    """Two norms a layer and one at the end, as in Llama."""
    return (2 * layers + 1) * hidden


def shape_of(spec: ModelSpec) -> Shape:
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = {"gemma3": 4}.get(spec.architecture, 2) * spec.hidden_size
    if spec.architecture in ("qwen3", "gemma3"):
        layer += 2 * spec.head_dim  # norms of q and k
    if spec.attention_bias:
        layer += query + 2 * key
    if spec.output_bias:
        layer += spec.hidden_size
    if spec.mlp_bias:
        layer += 2 * spec.intermediate_size + spec.hidden_size
    quantized = QUANTIZED.get(spec.quantization.stored, spec.dtype) if spec.quantization else None
    stored = quantized or spec.weights.lower()
    mixed = stored in FORMATS and spec.matrix_types and spec.table_types
    return Shape(
        name=spec.name,
        layers=spec.num_layers,
        hidden=spec.hidden_size,
        intermediate=spec.intermediate_size,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab=spec.vocab_size,
        context=spec.context,
        tied=spec.tied,
        window=max(spec.windows, default=0),
        windowed_layers=sum(1 for window in spec.windows if window),
        vectors=spec.num_layers * layer + spec.hidden_size,
        stored=stored if stored in FORMATS else "bfloat16",
        mixtures=_mixtures(stored, spec) if mixed else {},
    )


def _mixtures(stored: str, spec: ModelSpec) -> dict[Literal["cpu", "gpu"], Format]:
    on_cpu = packed(stored, spec.matrix_types, spec.table_types)
    return {"cpu": on_cpu, "gpu": coded(stored, spec.matrix_types)}


def _llama(name: str, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **more: int) -> Shape:
    """`more` are what differs from Llama 3, by the names of the fields."""
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=more.get("head_dim", hidden // heads),
        vocab=more.get("vocab", 128_256),
        context=more.get("context", 131_072),
        tied=bool(more.get("tied", False)),
        window=more.get("window", 0),
        windowed_layers=more.get("windowed_layers", 0),
        vectors=plain_vectors(layers, hidden),
    )


def _qwen2(name: str, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **more: int) -> Shape:
    shape = _llama(name, layers, hidden, intermediate, heads, kv_heads, **{"vocab": 152_064, "context": 32_768, **more})
    biases = layers * (heads + 2 * kv_heads) * shape.head_dim
    return msgspec.structs.replace(shape, vectors=shape.vectors + biases)


def _qwen3(name: str, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **more: int) -> Shape:
    numbers = {"head_dim": 128, "vocab": 151_936, "context": 40_960, **more}
    shape = _llama(name, layers, hidden, intermediate, heads, kv_heads, **numbers)
    return msgspec.structs.replace(shape, vectors=shape.vectors + layers * 2 * shape.head_dim)


def _gemma3(name: str, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **more: int) -> Shape:
    numbers = {"head_dim": 256, "vocab": 262_208, "tied": True, "window": 1024, **more}
    numbers["windowed_layers"] = layers - layers // 6  # five with a window, then one without
    shape = _llama(name, layers, hidden, intermediate, heads, kv_heads, **numbers)
    vectors = layers * (4 * hidden + 2 * shape.head_dim) + hidden
    return msgspec.structs.replace(shape, vectors=vectors)


# From the config.json that each model's makers publish.
_PRESETS = (
    _llama("smollm2-135m", 30, 576, 1536, 9, 3, vocab=49_152, context=8192, tied=True),
    _llama("smollm2-360m", 32, 960, 2560, 15, 5, vocab=49_152, context=8192, tied=True),
    _llama("smollm2-1.7b", 24, 2048, 8192, 32, 32, vocab=49_152, context=8192, tied=True),
    _llama("llama-3.2-1b", 16, 2048, 8192, 32, 8, tied=True),
    _llama("llama-3.2-3b", 28, 3072, 8192, 24, 8, tied=True),
    _llama("llama-3.1-8b", 32, 4096, 14_336, 32, 8),
    _llama("llama-3.1-70b", 80, 8192, 28_672, 64, 8),
    _llama("llama-3.1-405b", 126, 16_384, 53_248, 128, 8),
    _llama("llama-2-7b", 32, 4096, 11_008, 32, 32, vocab=32_000, context=4096),
    _llama("mistral-7b-v0.3", 32, 4096, 14_336, 32, 8, vocab=32_768, context=32_768),
    _llama("mistral-small-24b", 40, 5120, 32_768, 32, 8, head_dim=128, vocab=131_072, context=32_768),
    _qwen2("qwen2.5-0.5b", 24, 896, 4864, 14, 2, vocab=151_936, tied=True),
    _qwen2("qwen2.5-1.5b", 28, 1536, 8960, 12, 2, vocab=151_936, tied=True),
    _qwen2("qwen2.5-7b", 28, 3584, 18_944, 28, 4),
    _qwen2("qwen2.5-32b", 64, 5120, 27_648, 40, 8),
    _qwen2("qwen2.5-72b", 80, 8192, 29_568, 64, 8),
    _qwen3("qwen3-0.6b", 28, 1024, 3072, 16, 8, tied=True),
    _qwen3("qwen3-1.7b", 28, 2048, 6144, 16, 8, tied=True),
    _qwen3("qwen3-4b", 36, 2560, 9728, 32, 8, tied=True),
    _qwen3("qwen3-8b", 36, 4096, 12_288, 32, 8),
    _qwen3("qwen3-14b", 40, 5120, 17_408, 40, 8),
    _qwen3("qwen3-32b", 64, 5120, 25_600, 64, 8),
    _gemma3("gemma-3-1b", 26, 1152, 6912, 4, 1, vocab=262_144, context=32_768, window=512),
    _gemma3("gemma-3-4b", 34, 2560, 10_240, 8, 4),
    _gemma3("gemma-3-12b", 48, 3840, 15_360, 16, 8),
    _gemma3("gemma-3-27b", 62, 5376, 21_504, 32, 16, head_dim=128),
    _llama("phi-3-mini", 32, 3072, 8192, 32, 32, vocab=32_064, context=4096, window=2047, windowed_layers=32),
)

PRESETS = {shape.name: shape for shape in _PRESETS}
