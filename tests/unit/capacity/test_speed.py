import hypothesis.strategies as st
import pytest
from hypothesis import given

from helpers.capacity_samples import devices, shapes
from penstock.capacity import memory
from penstock.capacity.device import PRESETS as DEVICES
from penstock.capacity.device import Device
from penstock.capacity.formats import FORMATS
from penstock.capacity.shape import PRESETS, Shape
from penstock.capacity.speed import REDUCE_LATENCY_S, Speed

BF16 = FORMATS["bfloat16"]
LLAMA_8B, LLAMA_70B = PRESETS["llama-3.1-8b"], PRESETS["llama-3.1-70b"]


def speed(shape: Shape, device: Device, **more: object) -> Speed:
    return Speed(shape, device, BF16, 16, **more)  # type: ignore[arg-type]


def test_two_operations_for_each_parameter_and_token() -> None:
    """The rule of thumb, 2 N a token, holds where attention is short: N is all but the embedding table."""
    one = speed(LLAMA_8B, DEVICES["a100-80gb"])
    read = LLAMA_8B.parameters - LLAMA_8B.table - LLAMA_8B.vectors
    assert one.step_flop(1, 0) == 2 * read
    assert one.prefill_flop(1000) == pytest.approx(2 * (read - LLAMA_8B.table) * 1000, rel=0.05)


def test_attention_of_a_prefill() -> None:
    """4 · heads · dim for every pair of a query and what it sees: half of the square, and the diagonal."""
    one = speed(LLAMA_8B, DEVICES["a100-80gb"])
    linear = 2 * LLAMA_8B.layers * LLAMA_8B.layer_matrices * 8192 + 2 * LLAMA_8B.table
    assert one.prefill_flop(8192) - linear == 32 * 4 * 32 * 128 * (8192 * 8193 / 2)


def test_decode_alone_is_bandwidth_over_bytes() -> None:
    """Published back-of-the-envelope: 8 B parameters of 16 bit through 2 TB/s are some 130 tokens a second at best."""
    step = speed(LLAMA_8B, DEVICES["a100-80gb"]).step(1, 0)
    assert step.bound == "bandwidth"
    assert step.seconds == pytest.approx(memory.read_bytes(LLAMA_8B, BF16) / 2.039e12)
    assert 1 / step.seconds == pytest.approx(136, abs=1)


def test_all_reduce_of_a_ring() -> None:
    """Two a layer; each of n devices sends its payload 2 (n - 1) / n times."""
    one = speed(LLAMA_70B, DEVICES["h100-sxm"], degree=8)
    assert one.reduce_bytes() == 2 * 80 * 8192 * 2 * 2 * 7 / 8
    alone, split = speed(LLAMA_70B, DEVICES["h100-sxm"]).step(1, 0), one.step(1, 0)
    link = one.reduce_bytes() / 450e9 + 160 * REDUCE_LATENCY_S
    read = memory.read_bytes(LLAMA_70B, BF16, 8) / 3.35e12
    assert split.seconds == pytest.approx(read + link)
    assert split.seconds < alone.seconds / 5


def test_the_balance_batch_is_where_the_bound_changes() -> None:
    one = speed(LLAMA_8B, DEVICES["h100-sxm"])
    balance = one.balance_batch(0)
    assert balance == pytest.approx(989.4e12 / 3.35e12, rel=0.001)  # FLOP a byte; two bytes and two FLOP a parameter
    assert one.step(int(balance), 0).bound == "bandwidth"
    assert one.step(int(balance) + 1, 0).bound == "compute"
    assert speed(PRESETS["llama-2-7b"], DEVICES["h100-sxm"]).balance_batch(100_000) is None  # all reading is of KV


@given(shapes(), devices(), st.integers(1, 512), st.integers(1, 512), st.integers(0, 100_000))
def test_larger_batches_take_longer_steps_and_give_more_tokens(
    shape: Shape, device: Device, few: int, more: int, context: int
) -> None:
    few, more = sorted((few, more))
    one = speed(shape, device)
    assert one.step(few, context).seconds <= one.step(more, context).seconds
    assert few / one.step(few, context).seconds <= more / one.step(more, context).seconds * (1 + 1e-9)


@given(shapes(), devices(), st.floats(0.001, 1), st.floats(0.001, 1), st.integers(1, 64), st.integers(1, 50_000))
def test_no_expectation_is_above_its_ceiling(
    shape: Shape, device: Device, compute: float, bandwidth: float, batch: int, tokens: int
) -> None:
    one = speed(shape, device, compute_efficiency=compute, bandwidth_efficiency=bandwidth)
    assert one.step(batch, tokens).seconds >= one.ceiling.step(batch, tokens).seconds
    assert one.prefill(tokens).seconds >= one.ceiling.prefill(tokens).seconds


@given(shapes(), devices(), st.integers(1, 50_000), st.floats(0, 1))
def test_what_is_cached_need_not_be_computed(shape: Shape, device: Device, tokens: int, share: float) -> None:
    one = speed(shape, device)
    cached = int(tokens * share)
    assert one.prefill(tokens, cached).seconds <= one.prefill(tokens).seconds
    whole, first, rest = one.prefill_flop(tokens), one.prefill_flop(cached), one.prefill_flop(tokens, cached)
    assert first + rest == pytest.approx(whole + 2 * shape.table)  # in two parts it makes logits twice


@given(shapes(), devices(), st.integers(1, 4096))
def test_a_window_never_costs(shape: Shape, device: Device, tokens: int) -> None:
    from msgspec.structs import replace

    full = replace(shape, window=0, windowed_layers=0)
    assert speed(shape, device).prefill_flop(tokens) <= speed(full, device).prefill_flop(tokens) * (1 + 1e-12)
    assert speed(shape, device).step(4, tokens).seconds <= speed(full, device).step(4, tokens).seconds


def test_a_cpu_multiplies_quantized_weights_in_8_bit() -> None:
    cpu = DEVICES["epyc-9654"]
    exact, packed = (Speed(LLAMA_8B, cpu, FORMATS[name], 16).prefill(4096) for name in ("bfloat16", "q8_0"))
    assert exact.bound == packed.bound == "compute"
    assert exact.seconds == pytest.approx(4 * packed.seconds)
    gpu = [Speed(LLAMA_8B, DEVICES["l4"], FORMATS[name], 16).prefill(4096).seconds for name in ("bfloat16", "q8_0")]
    assert gpu[0] == gpu[1]
