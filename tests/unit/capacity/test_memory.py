import hypothesis.strategies as st
import pytest
from hypothesis import given

from helpers.capacity_samples import shapes
from penstock.capacity import memory
from penstock.capacity.formats import FORMATS, kv_bits
from penstock.capacity.shape import PRESETS, Shape

GIB = 1 << 30
LLAMA_70B, LLAMA_8B, LLAMA_2, GEMMA = (
    PRESETS[name] for name in ("llama-3.1-70b", "llama-3.1-8b", "llama-2-7b", "gemma-3-27b")
)


def test_kv_uses_kv_heads() -> None:
    """80 layers, 8 KV heads of 128, 4,096 tokens in 16 bit. The 64 query heads would make it 10 GiB."""
    assert memory.kv_bytes(LLAMA_70B, 16, 4096) == 1.25 * GIB


def test_published_kv_sizes() -> None:
    assert memory.kv_bytes(LLAMA_2, 16, 1) == 512 * 1024  # half a megabyte a token, from before KV heads were shared
    assert memory.kv_bytes(LLAMA_8B, 16, 1) == 128 * 1024
    # The table in Hugging Face's announcement of Llama 3.1: 15.62 and 39.06 at 128k tokens.
    assert memory.kv_bytes(LLAMA_8B, 16, 128_000) / GIB == pytest.approx(15.62, abs=0.01)
    assert memory.kv_bytes(LLAMA_70B, 16, 128_000) / GIB == pytest.approx(39.06, abs=0.01)
    assert memory.kv_bytes(LLAMA_8B, 8, 1) == 64 * 1024


@pytest.mark.parametrize(
    ("format", "gibibytes"), [("float16", 14.96), ("q8_0", 7.95), ("q6_k", 6.14), ("q5_k_m", 5.33), ("q4_k_m", 4.58)]
)
def test_published_file_sizes_of_llama_8b(format: str, gibibytes: float) -> None:
    assert memory.weights_bytes(LLAMA_8B, FORMATS[format]) / GIB == pytest.approx(gibibytes, abs=0.01)


def test_windowed_layers_are_bounded_by_their_window() -> None:
    per_token = 2 * GEMMA.kv_heads * GEMMA.head_dim * 2
    assert memory.kv_bytes(GEMMA, 16, 1024) == per_token * 62 * 1024
    assert memory.kv_bytes(GEMMA, 16, 4096) == per_token * (10 * 4096 + 52 * 1024)


def test_split_over_devices() -> None:
    whole = memory.kv_bytes(LLAMA_70B, 16, 100)
    assert memory.kv_bytes(LLAMA_70B, 16, 100, 4) == whole / 4
    assert memory.kv_bytes(LLAMA_70B, 16, 100, 16) == whole / 8  # 8 KV heads: two devices each have the same one
    format = FORMATS["bfloat16"]
    parts = memory.weights_bytes(LLAMA_70B, format, 4) * 4
    assert parts - memory.weights_bytes(LLAMA_70B, format) == 3 * LLAMA_70B.vectors * 2  # norms are on all four


@given(shapes(), st.integers(0, 200_000), st.integers(0, 200_000))
def test_kv_grows_with_tokens_and_at_most_in_proportion(shape: Shape, few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert memory.kv_bytes(shape, 16, few) <= memory.kv_bytes(shape, 16, more)
    assert memory.kv_bytes(shape, 16, more) <= memory.kv_bytes(shape, 16, 1) * more


@given(shapes(), st.sampled_from(sorted(FORMATS)))
def test_more_devices_never_need_more_each(shape: Shape, name: str) -> None:
    sizes = [memory.weights_bytes(shape, FORMATS[name], degree) for degree in (1, 2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True)
    caches = [memory.kv_bytes(shape, 16, 100, degree) for degree in (1, 2, 4, 8)]
    assert caches == sorted(caches, reverse=True)


@given(shapes(), st.floats(0, 1e12))
def test_the_longest_context_fits_and_the_next_block_does_not(shape: Shape, room: float) -> None:
    longest = memory.longest_context(shape, 16, room)
    assert 0 <= longest <= shape.context
    assert memory.kv_bytes(shape, 16, longest) <= room
    if longest < shape.context:
        blocks = longest // memory.BLOCK_TOKENS + 1
        assert memory.kv_bytes(shape, 16, blocks * memory.BLOCK_TOKENS) > room


@given(shapes(), st.floats(0, 1e12), st.integers(1, 100_000))
def test_as_many_as_fit_and_no_more(shape: Shape, room: float, tokens: int) -> None:
    count = memory.concurrent(shape, 16, room, tokens)
    one = memory.request_bytes(shape, 16, tokens)
    assert one >= memory.kv_bytes(shape, 16, tokens)
    assert count * one <= room < (count + 1) * one * (1 + 1e-9)


def test_quantized_keys_and_values_have_scales() -> None:
    """As the engine lays them out: 4 bytes for each head of each token."""
    assert memory.kv_bytes(LLAMA_8B, kv_bits("int8", 128, "cpu"), 1) == 32 * 2 * 8 * (128 + 4)
    assert memory.kv_bytes(LLAMA_8B, kv_bits("int4", 128, "cpu"), 1) == 32 * 2 * 8 * (64 + 4 * 2)
    assert memory.kv_bytes(LLAMA_8B, kv_bits("int8,int4", 128, "cpu"), 1) == 32 * 8 * (128 + 4 + 64 + 4 * 2)
    assert memory.kv_bytes(LLAMA_8B, kv_bits("float16", 128, "cpu"), 1) == 128 * 1024


def test_scales_of_a_gpus_int4_are_four_whatever_the_heads_size() -> None:
    assert [kv_bits("int4", size, "gpu") for size in (64, 96, 128, 256)] == [5.0, 4 + 2 / 3, 4.5, 4.25]
    assert [kv_bits("int4", size, "cpu") for size in (64, 96, 128, 256)] == [4.5] * 4
    assert kv_bits("fp8,int4", 128, "gpu") == (8.25 + 4.5) / 2
