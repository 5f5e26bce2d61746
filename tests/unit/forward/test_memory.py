from typing import Any

import pytest
import torch

from helpers.model_specs import small_spec
from penstock.errors import OutOfMemory
from penstock.forward.memory import CacheSize, check_weights, draft_block_bytes, host_memory, size_cache
from penstock.forward.native_pages import allocate_native_pages
from penstock.forward.torch_loading import allocate_pages, device_memory
from penstock.kernels.interface import as_array
from penstock.settings import CacheSettings
from penstock.startup.preflight import LEAST_CONTEXT
from penstock.store.kv_types import kv_types
from penstock.store.spec import ModelSpec
from penstock.system import resources

GIB = 1 << 30
CPU = torch.device("cpu")


def spec(*windows: int) -> ModelSpec:
    return small_spec(intermediate_size=64, num_layers=len(windows), context=4096, windows=windows)


FULL = spec(0, 0)  # two layers: a block of 16 tokens takes 2 * 2 * 16 * 2 * 16 * 2 bytes = 4 KiB in bfloat16
BLOCK_BYTES = 4096


def size(model: ModelSpec = FULL, settings: CacheSettings | None = None, **changes: Any) -> CacheSize:
    options = {"context": 4096, "max_sequences": 8, "step_tokens": 256, "types": kv_types("bfloat16")}
    return size_cache(model, settings or CacheSettings(), **({"memory": host_memory()} | options | changes))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> int:
    """A machine with 2 MiB to spare."""
    monkeypatch.setattr(resources, "host_bytes", lambda: 2 << 20)
    return 2 << 20


def test_takes_a_quarter_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "host_bytes", lambda: 16 << 20)
    result = size()
    assert result.block_bytes == (BLOCK_BYTES,)
    assert result.blocks == ((4 << 20) // BLOCK_BYTES,)
    assert result.num_bytes == 4 << 20
    assert size(settings=CacheSettings(memory_fraction=0.5)).num_bytes == 8 << 20
    assert size(settings=CacheSettings(kv_memory="6MiB")).num_bytes == 6 << 20
    assert size(types=kv_types("float32")).blocks == ((4 << 20) // (2 * BLOCK_BYTES),)


def test_never_takes_more_than_the_sequences_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "host_bytes", lambda: 100 * GIB)
    assert size().blocks == (8 * 256 + 1,)
    assert size(context=100).blocks == (8 * 7 + 1,)
    assert size(max_sequences=1, settings=CacheSettings(kv_memory="50GiB", block_size=1024)).blocks == (5,)


@pytest.mark.usefixtures("free")
def test_says_what_is_missing_for_one_sequence() -> None:
    with pytest.raises(OutOfMemory) as caught:
        size()
    assert caught.value.param == "memory_fraction"
    for part in ("4096 tokens", "1.0 MiB", "512.0 KiB", "516.0 KiB are missing", "context", "memory_fraction"):
        assert part in caught.value.message
    with pytest.raises(OutOfMemory, match="raise kv_memory") as caught:
        size(settings=CacheSettings(kv_memory="1MiB"))
    assert caught.value.param == "kv_memory"
    assert size(settings=CacheSettings(kv_memory="1028KiB")).blocks == (257,)
    assert size(context=2032).blocks == (128,)


@pytest.mark.usefixtures("free")
def test_refuses_kv_memory_that_is_not_there() -> None:
    """Though the sequences could not use all of it."""
    for sequences in (1, 8):
        with pytest.raises(OutOfMemory, match=r"5\.0 MiB exceed the free memory of 2\.0 MiB") as caught:
            size(settings=CacheSettings(kv_memory="5MiB"), max_sequences=sequences)
        assert caught.value.param == "kv_memory"
    assert size(settings=CacheSettings(kv_memory="2MiB"), max_sequences=1).blocks == (257,)


@pytest.mark.usefixtures("free")
def test_without_a_context_the_longest_that_fits_is_taken() -> None:
    """Half a MiB is 128 blocks, of which one is nobody's."""
    fitting = size(context=None)
    assert (fitting.context, fitting.blocks) == (127 * 16, (128,))
    assert size(context=fitting.context).blocks == (128,)
    with pytest.raises(OutOfMemory, match=f"{fitting.context} tokens would fit"):
        size(context=fitting.context + 1)
    roomy = size(context=None, settings=CacheSettings(kv_memory="2MiB"))
    assert (roomy.context, roomy.blocks) == (4096, (512,))


def test_no_context_is_made_so_short_that_it_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "host_bytes", lambda: 4 * 17 * BLOCK_BYTES)
    assert size(context=None).context == LEAST_CONTEXT == 256
    monkeypatch.setattr(resources, "host_bytes", lambda: 4 * 17 * BLOCK_BYTES - 4)
    with pytest.raises(OutOfMemory, match="240 tokens would fit"):
        size(context=None)


def test_windows_are_counted_when_a_context_is_made_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer but one sees 100 tokens: their blocks do not grow with the context."""
    model = spec(100, 0, 100, 100)
    monkeypatch.setattr(resources, "host_bytes", lambda: 2 << 20)
    fitting = size(model, context=None)
    assert fitting.num_bytes <= 512 << 10
    windows = 1 + -(-(100 - 2 + 256) // 16)
    assert fitting.blocks == (fitting.context // 16 + 1, windows + 1)
    with pytest.raises(OutOfMemory):
        size(model, context=fitting.context + 1)


@pytest.mark.usefixtures("free")
def test_weights_and_the_kv_memory_that_was_asked_for_must_fit_together() -> None:
    check_weights(1 << 20, CacheSettings(), host_memory())
    check_weights(1 << 20, CacheSettings(kv_memory="1MiB"), host_memory())
    with pytest.raises(OutOfMemory, match=r"exceed the free memory of 1\.0 MiB") as caught:
        check_weights(1 << 20, CacheSettings(kv_memory="1.1MiB"), host_memory())
    assert caught.value.param == "kv_memory"


class TestWindows:
    """One full layer and three with a window of 100: a block of the second group takes three times as much."""

    model = spec(100, 0, 100, 100)
    full_bytes, window_bytes = BLOCK_BYTES // 2, BLOCK_BYTES * 3 // 2
    window_most = 8 * (-(-(100 + 256) // 16) + 1)

    def test_a_window_has_all_it_can_use_and_the_rest_is_for_full_attention(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resources, "host_bytes", lambda: 100 * GIB)
        assert size(self.model).blocks == (8 * 256 + 1, self.window_most + 1)
        budget = (self.window_most + 1) * self.window_bytes + 1001 * self.full_bytes + self.full_bytes - 1
        result = size(self.model, CacheSettings(kv_memory=f"{budget}B"))
        assert result.block_bytes == (self.full_bytes, self.window_bytes)
        assert result.blocks == (1001, self.window_most + 1)

    def test_groups_share_alike_when_memory_is_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A context of 512 needs 32 full blocks and 24 with a window."""
        monkeypatch.setattr(resources, "host_bytes", lambda: 100 * GIB)
        budget = 101 * (self.full_bytes + self.window_bytes)
        assert size(self.model, CacheSettings(kv_memory=f"{budget}B"), context=512).blocks == (101, 101)

    def test_one_sequence_comes_before_sharing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resources, "host_bytes", lambda: 100 * GIB)
        least = 257 * self.full_bytes + 25 * self.window_bytes
        assert size(self.model, CacheSettings(kv_memory=f"{least}B")).blocks == (257, 25)
        with pytest.raises(OutOfMemory):
            size(self.model, CacheSettings(kv_memory=f"{least - 1}B"))


def test_accelerators_count_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 << 20, 100 << 20))
    result = size(memory=device_memory(torch.device("cuda")), max_sequences=100)
    assert result.num_bytes == 50 << 20


def test_pages_have_the_blocks_of_their_group() -> None:
    model = spec(100, 0, 100)
    pages = allocate_pages(model, CacheSize(16, (7, 3), (0, 0)), torch.float16, CPU)
    assert [page.keys.shape for page in pages] == [(3, 16, 2, 16), (7, 16, 2, 16), (3, 16, 2, 16)]
    assert all(page.values.shape == page.keys.shape and page.values.dtype == torch.float16 for page in pages)
    assert len({tensor.data_ptr() for page in pages for tensor in (page.keys, page.values)}) == 6


def test_an_impossible_allocation_is_a_clear_error() -> None:
    with pytest.raises(OutOfMemory, match="could not be allocated"):
        allocate_pages(FULL, CacheSize(16, (1 << 55,), (BLOCK_BYTES,)), torch.float16, CPU)
    with pytest.raises(OutOfMemory, match="could not be allocated"):
        allocate_native_pages(FULL, CacheSize(16, (1 << 40,), (BLOCK_BYTES,)), kv_types("float16"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int4", "int8,int4", "int4,float16"])
def test_native_pages_fill_their_memory_and_do_not_overlap(dtype: str) -> None:
    """Each number written once, layer by layer, is still there at the end."""
    block_bytes = tuple(FULL.block_bytes(group, 16, kv_types(dtype)) for group in FULL.cache_groups)
    pages = allocate_native_pages(FULL, CacheSize(16, (5,), block_bytes), kv_types(dtype))
    parts = [
        as_array(part)
        for layer in pages
        for part in (layer.keys, layer.values, layer.key_scales, layer.value_scales)
        if part is not None
    ]
    for number, part in enumerate(parts):
        part.fill(number)
    assert all((part == number).all() for number, part in enumerate(parts))
    assert sum(part.nbytes for part in parts) == 5 * sum(block_bytes)


def test_layers_of_a_proposer_have_scales_of_their_own() -> None:
    """Whatever the target's checkpoint has: 4 bytes for the key and for the value of each head of each token."""
    types = kv_types("fp8")._replace(on_gpu=True, static_scales=True)
    codes = FULL.block_bytes(FULL.cache_groups[0], 16, types)
    assert draft_block_bytes(FULL, 16, types) == codes + 2 * 16 * 2 * 2 * 4
