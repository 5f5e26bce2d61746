"""Models: architectures (`architectures/`, listed in `registry`), the layers they are wired from (`layers/`), and the
loading of their weights (`weights/`).

model = load(spec, open_source(paths, "gguf"), dtype=..., device=..., context=...)
hidden = model.forward(ops, batch, pages)
scores = ops.logits(hidden, model.head, spec.logit_softcap)
"""

from penstock.model.layers.decoder import Decoder
from penstock.model.load import choose_dtype, load, open_source, packed_bytes, weight_bytes
from penstock.model.weights.dummy import DummySource
from penstock.model.weights.form import Packing
from penstock.model.weights.source import Source

__all__ = [
    "Decoder",
    "DummySource",
    "Packing",
    "Source",
    "choose_dtype",
    "load",
    "open_source",
    "packed_bytes",
    "weight_bytes",
]
