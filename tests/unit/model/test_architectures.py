"""An architecture is its layer: another wiring is another class, and the decoder around it stays as it is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.model_specs import small_spec
from helpers.native_paged_model import NativePagedModel, needs_library
from helpers.paged_model import Row, make_batch, make_pages, run_alone
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Operations, Rotary
from penstock.kernels.reference.dense import to_dense
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import DummySource, PackedForm
from penstock.model.architectures.llama import Llama
from penstock.model.layers.build import LayerBuilder
from penstock.model.layers.rope import rotary_table
from penstock.model.layers.step import LayerStep
from penstock.model.weights import loader
from penstock.model.weights.dense_form import DenseForm
from penstock.model.weights.form import DeviceForm
from penstock.store.spec import Rope

DENSE = DenseForm(torch.float32, torch.device("cpu"))
SPEC = small_spec(num_kv_heads=4)
TOKENS = list(range(20))


class PostNormLayer:
    """As in OLMo 2: x + norm(attention(x)), then x + norm(MLP(x))."""

    def __init__(self, build: LayerBuilder) -> None:
        self.qkv = build.linear("qkv")
        self.attention = build.attention()
        self.output = build.linear("output")
        self.attention_norm = build.norm("attention_norm")
        self.gate_up = build.linear("gate_up", gate=build.spec.activation)
        self.down = build.linear("down")
        self.mlp_norm = build.norm("mlp_norm")

    def forward(self, ops: Operations, x: Tensor, step: LayerStep) -> Tensor:
        mixed, x = step.select(self.attention(ops, ops.linear(x, self.qkv), step), x)
        x = ops.norm(ops.linear(mixed, self.output), self.attention_norm, onto=x)
        return ops.norm(ops.linear(ops.linear(x, self.gate_up), self.down), self.mlp_norm, onto=x)


class PostNorm(Llama):
    layer = PostNormLayer


def make(kind: type[Llama], form: DeviceForm = DENSE) -> Llama:
    def rotary(rope: Rope) -> Rotary:
        return Rotary(form.constant(rotary_table(rope, 64)), rope.dim)

    return kind(SPEC, loader.load(kind.weight_map, DummySource(), SPEC, form), rotary)


def definition(model: Llama, tokens: list[int]) -> Tensor:
    """The post-norm network written out, without a cache."""

    def norm(x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], None, SPEC.norm_eps)  # dummy norms are ones

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = torch.as_tensor(model.layers[0].attention.rotary.table)[: len(tokens)].unbind(1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    x = to_dense(model.embedding)[tokens]
    for layer in model.layers:
        qkv, output, gate_up, down = (
            to_dense(getattr(layer, name).weight) for name in ("qkv", "output", "gate_up", "down")
        )
        q, k, v = (x @ qkv.T).view(-1, 12, 16).transpose(0, 1).chunk(3)
        mixed = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True, scale=0.25)
        x = x + norm(mixed.transpose(0, 1).flatten(1) @ output.T)
        gate, up = (x @ gate_up.T).chunk(2, dim=-1)
        x = x + norm(F.silu(gate) * up @ down.T)
    return norm(x) @ to_dense(model.head).T


def test_a_post_norm_layer() -> None:
    model = make(PostNorm)
    expected = definition(model, TOKENS)
    torch.testing.assert_close(run_alone(model, TOKENS, (7, 1)), expected, rtol=1e-4, atol=1e-4)
    assert not run_alone(make(Llama), TOKENS).allclose(expected, atol=0.1)


@needs_library
def test_a_post_norm_layer_as_a_native_program() -> None:
    model = make(PostNorm, PackedForm())
    paged = NativePagedModel(model, Pool(1))
    paged.step({paged.add(TOKENS): len(TOKENS)})
    torch.testing.assert_close(torch.from_numpy(paged.logits(0)), definition(model, TOKENS), rtol=1e-4, atol=1e-4)


def test_hidden_states_of_wanted_tokens_are_those_among_all() -> None:
    model = make(Llama)
    batch = make_batch([Row(TOKENS, 0, len(TOKENS), [[1, 2, 3, 4, 5]])], 4)
    some = torch.tensor([3, 19])
    with torch.inference_mode():
        hidden = model.forward(TorchOperations(), batch, make_pages(SPEC, 6, 4, torch.float32))
        chosen = type(batch)(*[some if name == "logits_indices" else getattr(batch, name) for name in batch.__slots__])
        found = model.forward(TorchOperations(), chosen, make_pages(SPEC, 6, 4, torch.float32))
    torch.testing.assert_close(found, hidden[some])
