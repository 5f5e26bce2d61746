"""torch's internals: each fast path where it is there, and the warning and the slow path where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from penstock.kernels import torch_internals
from penstock.kernels.reference import linear
from penstock.kernels.weight import Weight
from penstock.model.weights.dense_form import DenseForm
from penstock.system.slow_paths import warn_slow_path

CACHED = ("stream_functions", "has_onednn_linear", "cudnn_attention", "float32_product")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    def clear() -> None:
        for name in CACHED:
            getattr(torch_internals, name).cache_clear()

    warn_slow_path.cache_clear()
    clear()
    yield
    clear()


def ops(monkeypatch: pytest.MonkeyPatch, **namespaces: object) -> None:
    monkeypatch.setattr(torch, "ops", SimpleNamespace(**namespaces))


def test_the_installed_torch_has_every_fast_path_of_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    assert torch_internals.cudnn_attention() is not None
    x, w = torch.randn(3, 8).bfloat16(), torch.randn(8, 4).bfloat16()
    out = torch.empty(3, 4)
    if torch.cuda.is_available():
        torch_internals.stream_functions()
        torch_internals.float32_product()(x.cuda(), w.cuda(), out.cuda())
    if torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        assert linear.prefers_onednn(torch.float32, torch.device("cpu"))
    assert caplog.text == ""


def wrong(*_: object) -> torch.Tensor:
    return torch.zeros(2, 16)


@pytest.mark.parametrize(
    "operators",
    [
        SimpleNamespace(),
        SimpleNamespace(_reorder_linear_weight=lambda weight, rows: weight, _linear_pointwise=wrong),
        SimpleNamespace(_reorder_linear_weight=lambda weight: weight, _linear_pointwise=wrong),
    ],
    ids=["no operator", "other results", "other arguments"],
)
def test_without_packed_weights_a_product_takes_plain_ones(
    operators: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    ops(monkeypatch, mkldnn=operators)
    table, x = Weight.from_dense(torch.randn(16, 16)), torch.randn(3, 16)
    head = DenseForm(torch.float32, torch.device("cpu")).tied_head(table)
    assert head is table
    assert torch.equal(linear.reference(x, head.dense), F.linear(x, table.dense))
    assert caplog.text.count("oneDNN product") == 1


@pytest.mark.parametrize("names", [None, ("query", "key", "value"), (*torch_internals.CUDNN_ARGUMENTS, "dropout")])
def test_without_cudnns_attention_long_prompts_take_our_own(
    names: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    schema = SimpleNamespace(arguments=[SimpleNamespace(name=name) for name in names or ()])
    operator = SimpleNamespace(default=SimpleNamespace(_schema=schema))
    ops(monkeypatch, aten=SimpleNamespace(**({"_scaled_dot_product_cudnn_attention": operator} if names else {})))
    assert torch_internals.cudnn_attention() is None
    assert torch_internals.cudnn_attention() is None
    assert caplog.text.count("no cuDNN attention") == 1


def test_without_a_product_into_float32_logits_are_widened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ops(monkeypatch, aten=SimpleNamespace(mm=SimpleNamespace()))
    x, w, out = torch.randn(3, 8).bfloat16(), torch.randn(8, 4).bfloat16(), torch.empty(3, 4)
    torch_internals.float32_product()(x, w, out)
    assert torch.equal(out, (x @ w).float())
    assert "logits are rounded" in caplog.text


def test_without_raw_streams_the_documented_ones_are_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_cuda_getDevice", "_cuda_getCurrentRawStream"):
        monkeypatch.delattr(torch._C, name, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=100 + index))
    device, stream = torch_internals.stream_functions()
    assert stream(device()) == 103
    assert "no raw CUDA stream" in caplog.text
