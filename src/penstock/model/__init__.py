"""Models: architectures (`architectures/`, listed in `registry`), the layers they are wired from (`layers/`), and the
loading of their weights (`weights/`). Without torch, except `load_dense` and the modules it uses
(`weights.dense_form`, `weights.dummy_tensors`).

model = load(spec, open_source(paths, "gguf"), PackedForm(), context=...)
hidden = model.forward(ops, batch, pages)
scores = ops.logits(hidden, model.head, spec.logit_softcap)
"""

from penstock.model.layers.decoder import Decoder
from penstock.model.load import load, open_source, packed_bytes, parameter_bytes
from penstock.model.weights.dummy import DummySource
from penstock.model.weights.form import PackedForm
from penstock.model.weights.source import Source

__all__ = ["Decoder", "DummySource", "PackedForm", "Source", "load", "open_source", "packed_bytes", "parameter_bytes"]
