"""Settings that can only fail do so before torch is imported, with their names."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import pytest

from helpers.model_specs import small_spec
from penstock import settings
from penstock.errors import InvalidSetting, OutOfMemory
from penstock.startup import preflight
from penstock.system import resources

# Two layers: a block of 16 tokens takes 2 * 2 * 16 * 2 * 16 * 2 bytes = 4 KiB in 16 bit.
SPEC = small_spec(intermediate_size=64, context=4096)
BLOCK_BYTES = 4096


def check(**values: Any) -> None:
    preflight.check(settings.load(values, environ={}), SPEC)


@pytest.fixture
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(resources, "host_bytes", lambda: 1 << 30)


@pytest.mark.usefixtures("_no_driver")
@pytest.mark.parametrize(
    ("values", "param", "says"),
    [
        ({"context": 999_999}, "context", "was made for 4096 tokens, 999999 were asked for"),
        ({"device": "cuda"}, "device", "no CUDA device: the NVIDIA driver"),
        ({"kv_memory": "1kB"}, "kv_memory", "1000 B hold no sequence of 256 tokens, which takes 68.0 KiB"),
        (
            {"kv_memory": "1MiB", "context": 4096},
            "kv_memory",
            "hold no sequence of 4096 tokens, which takes 1.0 MiB or more",
        ),
        ({"kv_memory": "10TB"}, "kv_memory", "9.09 TiB exceed the free memory of 1.00 GiB"),
        ({"tensor_parallel": 3}, "tensor_parallel", "cannot be split over 3 ranks"),
        ({"tensor_parallel": 2, "kv_memory": "600MiB"}, "kv_memory", "1.17 GiB exceed the free memory"),  # of each rank
        (
            {"tensor_parallel": 2, "kv_memory": "1kB"},
            "kv_memory",
            "of 256 tokens, which takes 34.0 KiB",
        ),  # half of each
        ({"tensor_parallel": 2, "quantize": "int8"}, "quantize", "leave quantize out (dtype bfloat16"),
    ],
)
def test_what_can_only_fail_says_which_setting_it_is(values: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises((InvalidSetting, OutOfMemory)) as caught:
        check(**values)
    assert caught.value.param == param
    assert says in caught.value.message


@pytest.mark.parametrize(("gpus", "says"), [(1, "there is 1: lower"), (3, "there are 3: lower"), (4, None), (0, None)])
def test_each_rank_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, gpus: int, says: str | None) -> None:
    """Where their number is not known the engine finds out."""
    monkeypatch.setattr(preflight, "has_driver", lambda: True)
    monkeypatch.setattr(preflight.resources, "gpu_count", lambda: gpus)
    check(tensor_parallel=4, device="cpu")
    if says is None:
        check(tensor_parallel=4, quantize="int4")
        return
    with pytest.raises(InvalidSetting, match=f"tensor_parallel: 4 ranks need a GPU each, but {says}"):
        check(tensor_parallel=4)


@pytest.mark.usefixtures("_no_driver")
def test_what_may_work_is_left_to_the_engine() -> None:
    check()
    check(context=4096, kv_memory=f"{257 * BLOCK_BYTES}B")
    check(kv_memory="1GiB", device="auto")


def test_with_a_driver_it_is_the_device_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(resources, "host_bytes", lambda: 1 << 20)
    check(device="cuda", kv_memory="10TB")
    with pytest.raises(OutOfMemory):
        check(device="cpu", kv_memory="10TB")


@pytest.mark.usefixtures("_no_driver")
@pytest.mark.parametrize(
    "values",
    [
        {"device": "cuda"},
        {"device": "cuda", "tensor_parallel": 4},
        {"device": "cpu", "kv_memory": "10TB"},
        {"dtype": "bfloat16"},
        {"tensor_parallel": 2},
    ],
)
def test_what_this_machine_lacks_a_node_of_the_cluster_may_have(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    def require_torch(what: str, param: str) -> None:
        raise InvalidSetting(f"{what} needs torch", param=param)

    monkeypatch.setattr(preflight, "require_torch", require_torch)
    check(cluster="10.0.0.2:6379", **values)
    with pytest.raises((InvalidSetting, OutOfMemory)):
        check(**values)


def test_the_gpus_of_this_machine_are_not_those_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "has_driver", lambda: True)
    monkeypatch.setattr(preflight.resources, "gpu_count", lambda: 1)
    check(cluster="auto", tensor_parallel=4)
    preflight.check_pools(settings.load({"cluster": "auto"}, environ={}), "tcp")
    with pytest.raises(InvalidSetting, match="do not run on a GPU yet: set device cpu"):
        preflight.check_pools(settings.load({"cluster": "auto", "device": "cuda"}, environ={}), "tcp")


def test_none_of_it_needs_torch() -> None:
    code = "import sys, penstock.startup.preflight; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("_no_driver")
def test_pools_need_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    preflight.check_pools(settings.load({}, environ={}), "shared-memory")
    monkeypatch.setattr(preflight, "has_driver", lambda: True)
    with pytest.raises(InvalidSetting, match="do not run on a GPU yet: set device cpu"):
        preflight.check_pools(settings.load({}, environ={}), "shared-memory")


@pytest.mark.usefixtures("_no_driver")
def test_pools_of_a_cluster_have_no_shared_memory() -> None:
    preflight.check_pools(settings.load({"cluster": "auto"}, environ={}), "tcp")
    with pytest.raises(InvalidSetting, match="set kv_transport to tcp, or leave cluster or prefill_replicas") as error:
        preflight.check_pools(settings.load({"cluster": "auto"}, environ={}), "shared-memory")
    assert error.value.param == "kv_transport"
