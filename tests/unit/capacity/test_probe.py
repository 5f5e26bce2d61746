import pytest

from penstock.capacity import probe
from penstock.errors import InvalidRequest

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "mebibytes", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", 81_559, "h100-sxm"),
        ("NVIDIA H100 PCIe", 81_559, "h100-pcie"),
        ("NVIDIA H200", 143_771, "h200-sxm"),
        ("NVIDIA A100-SXM4-40GB", 40_960, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81_920, "a100-80gb"),
        ("NVIDIA L40S", 46_068, "l40s"),
        ("NVIDIA L4", 23_034, "l4"),
        ("Tesla T4", 15_360, "t4"),
        ("NVIDIA GeForce RTX 4090", 24_564, "rtx-4090"),
        ("NVIDIA GeForce RTX 3090", 24_576, "rtx-3090"),
    ],
)
def test_gpus_by_the_name_they_give(name: str, mebibytes: int, preset: str) -> None:
    assert probe.match_gpu(name, mebibytes * MIB).name == preset


def test_a_gpu_without_a_preset_is_told() -> None:
    for name, mebibytes in (("NVIDIA RTX 6000 Ada Generation", 49_140), ("NVIDIA H100 NVL", 95_830)):
        with pytest.raises(InvalidRequest, match=name) as caught:
            probe.match_gpu(name, mebibytes * MIB)
        assert caught.value.param == "hardware"


def test_this_machine() -> None:
    device = probe.this_machine("cpu")
    assert device.kind == "cpu"
    assert device.memory_bytes > 1e8
    assert device.bandwidth_bytes_s > 1e8
    assert device.flops > 1e8
    again = probe.this_machine("cpu")  # the best of both
    assert again.flops >= device.flops
    assert again.bandwidth_bytes_s >= device.bandwidth_bytes_s


def test_a_gpu_comes_first_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_nvidia_smi", lambda: ("Tesla T4", 15_360 * MIB))
    assert probe.this_machine().name == "t4"
    assert probe.this_machine("cpu").kind == "cpu"
    monkeypatch.setattr(probe, "_nvidia_smi", lambda: None)
    assert probe.this_machine().kind == "cpu"
    with pytest.raises(InvalidRequest, match="nvidia-smi"):
        probe.this_machine("cuda")
