"""Tensors at addresses that stay while their memory is away."""

import gc

import pytest

torch = pytest.importorskip("torch")

from penstock.errors import OutOfMemory  # noqa: E402
from penstock.forward import device_arena, host_copy  # noqa: E402
from penstock.forward.device_arena import ALIGNMENT, DeviceArena  # noqa: E402

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
SHAPES = [((3,), torch.float32), ((257, 1000), torch.bfloat16), ((0, 4), torch.int8), ((200 << 20,), torch.uint8)]


def free() -> int:
    """Without what earlier tests have left behind."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def test_tensors_come_back_where_they_were() -> None:
    arena = DeviceArena(DEVICE)
    before = free()
    tensors = [arena.empty(shape, dtype) for shape, dtype in SHAPES]
    assert before - free() >= arena.num_bytes > 200 << 20
    for tensor in tensors:
        tensor.copy_(torch.randint(0, 100, tensor.shape, device=DEVICE))
        assert tensor.data_ptr() % ALIGNMENT == 0
    copies = [tensor.clone() for tensor in tensors]
    graph = torch.cuda.CUDAGraph()
    doubled = torch.empty_like(copies[1])
    with torch.cuda.graph(graph):
        torch.mul(tensors[1], 2, out=doubled)
    awake = free()
    for _ in range(2):
        arena.save()
        arena.release()
        assert arena.num_bytes == 0
        assert free() - awake > 200 << 20
        arena.restore()
        for tensor, copy in zip(tensors, copies, strict=True):
            assert torch.equal(tensor, copy)
        doubled.zero_()
        graph.replay()
        assert torch.equal(doubled, copies[1] * 2)


def test_pages_of_the_host_are_no_longer_pinned_when_they_are_gone() -> None:
    """Else the next ones at their addresses could not be pinned."""
    for _ in range(3):
        copy = host_copy.PinnedBytes(64 << 20)
        assert copy.bytes.is_pinned()
        del copy


def test_what_was_not_saved_has_no_content_but_its_place() -> None:
    arena = DeviceArena(DEVICE)
    tensor = arena.empty((64 << 20,), torch.uint8)
    address = tensor.data_ptr()
    arena.release()
    arena.restore()
    tensor.fill_(7)
    assert (tensor.data_ptr(), int(tensor.sum(dtype=torch.int64))) == (address, 7 * (64 << 20))


def test_memory_is_given_back_with_the_last_tensor() -> None:
    before = free()
    arena = DeviceArena(DEVICE)
    tensor = arena.empty((512 << 20,), torch.uint8)
    view = tensor[5:]
    del arena, tensor
    assert before - free() >= 512 << 20
    view.fill_(1)
    del view
    assert before - free() < 64 << 20


def test_memory_that_is_given_up_during_a_capture_is_given_back_later() -> None:
    before = free()
    arena = DeviceArena(DEVICE)
    tensor = arena.empty((512 << 20,), torch.uint8)
    doubled = torch.ones(4, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled.mul_(2)
        del arena, tensor
    graph.replay()
    assert doubled.tolist() == [2.0] * 4
    DeviceArena(DEVICE)
    assert before - free() < 64 << 20


def test_a_device_that_is_full() -> None:
    arena, rest = DeviceArena(DEVICE), DeviceArena(DEVICE)
    arena.empty((8 << 30,), torch.uint8)
    arena.release()
    rest.empty((free() - (256 << 20),), torch.uint8)
    with pytest.raises(torch.OutOfMemoryError):
        arena.restore()
    assert arena.num_bytes == 0
    with pytest.raises(torch.OutOfMemoryError):
        rest.empty((1 << 60,), torch.uint8)
    del rest
    gc.collect()
    arena.restore()
    assert arena.num_bytes == 8 << 30


def test_a_host_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = DeviceArena(DEVICE)
    arena.empty((3 << 20,), torch.uint8)
    monkeypatch.setattr(device_arena.resources, "host_bytes", lambda: 1 << 20)
    with pytest.raises(OutOfMemory, match=r"asleep, the weights take 3\.0.*missing; unload the model instead"):
        arena.save()
