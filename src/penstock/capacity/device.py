"""Device: the numbers of a machine that speed depends on, and presets from the makers' data sheets."""

from __future__ import annotations

from typing import Literal

import msgspec

GB, TB, TERA = 1e9, 1e12, 1e12
GIB = float(1 << 30)
PCIE4, PCIE5 = 32 * GB, 64 * GB  # sixteen lanes, one direction


class Device(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    label: str
    kind: Literal["gpu", "cpu"] = "gpu"
    memory_bytes: float
    bandwidth_bytes_s: float  # of that memory
    flops: float  # dense, a second: 16 bit on GPUs, 32 bit on CPUs, which is what models compute in there
    link_bytes_s: float | None = None  # to the other devices, one direction; None: there is no other
    fp8_flops: float | None = None  # dense, a second; None: it has no 8-bit floats

    @property
    def maker(self) -> str:
        """NVIDIA for devices given by their numbers."""
        return "AMD" if self.label.startswith("AMD ") else "NVIDIA"


def _gpu(
    name: str, label: str, gigabytes: float, bandwidth: float, teraflops: float, link: float, fp8: float | None = None
) -> Device:
    return Device(
        name=name,
        label=label,
        memory_bytes=gigabytes * GB,
        bandwidth_bytes_s=bandwidth,
        flops=teraflops * TERA,
        link_bytes_s=link,
        fp8_flops=None if fp8 is None else fp8 * TERA,
    )


def _cpu(name: str, label: str, gibibytes: float, bandwidth: float, cores: int, hertz: float, per_cycle: int) -> Device:
    """`per_cycle`: float32 operations of a core, a fused multiply-add being two."""
    return Device(
        name=name,
        label=label,
        kind="cpu",
        memory_bytes=gibibytes * GIB,
        bandwidth_bytes_s=bandwidth,
        flops=cores * hertz * per_cycle,
    )


# GPUs: dense tensor-core figures, 16 bit and last FP8 where the card has it, both summed in 32 bit (data sheets often
# print twice that, for sparse matrices); links are NVLink where the
# card has it, half of the sum of both directions that is printed. CPUs: one socket, base clock, all memory channels.
_PRESETS = (
    _gpu("b200", "NVIDIA B200 180 GB", 180, 7.7 * TB, 2250, 900 * GB, 4500),
    _gpu("h200-sxm", "NVIDIA H200 SXM 141 GB", 141, 4.8 * TB, 989.4, 450 * GB, 1978.9),
    _gpu("h100-sxm", "NVIDIA H100 SXM 80 GB", 80, 3.35 * TB, 989.4, 450 * GB, 1978.9),
    _gpu("h100-pcie", "NVIDIA H100 PCIe 80 GB", 80, 2.0 * TB, 756, 300 * GB, 1513),
    _gpu("a100-80gb", "NVIDIA A100 SXM 80 GB", 80, 2.039 * TB, 312, 300 * GB),
    _gpu("a100-40gb", "NVIDIA A100 SXM 40 GB", 40, 1.555 * TB, 312, 300 * GB),
    _gpu("l40s", "NVIDIA L40S 48 GB", 48, 864 * GB, 362.05, PCIE4, 733),
    _gpu("l4", "NVIDIA L4 24 GB", 24, 300 * GB, 121, PCIE4, 242.5),
    _gpu("a10", "NVIDIA A10 24 GB", 24, 600 * GB, 125, PCIE4),
    _gpu("v100-32gb", "NVIDIA V100 SXM2 32 GB", 32, 900 * GB, 125, 150 * GB),
    _gpu("t4", "NVIDIA T4 16 GB", 16, 320 * GB, 65, PCIE4 / 2),
    _gpu("rtx-5090", "NVIDIA GeForce RTX 5090 32 GB", 32, 1792 * GB, 209.5, PCIE5, 419),
    _gpu("rtx-4090", "NVIDIA GeForce RTX 4090 24 GB", 24, 1008 * GB, 165.2, PCIE4, 330.3),
    _gpu("rtx-3090", "NVIDIA GeForce RTX 3090 24 GB", 24, 936 * GB, 71, PCIE4),
    _gpu("mi300x", "AMD Instinct MI300X 192 GB", 192, 5.3 * TB, 1307.4, 448 * GB, 2614.9),
    _cpu("epyc-9654", "AMD EPYC 9654, 96 cores, 12 channels", 384, 460.8 * GB, 96, 2.4e9, 32),
    _cpu("xeon-8480", "Intel Xeon Platinum 8480+, 56 cores, 8 channels", 256, 307.2 * GB, 56, 2.0e9, 64),
    _cpu("ryzen-7950x", "AMD Ryzen 9 7950X, 16 cores, 2 channels", 64, 83.2 * GB, 16, 4.5e9, 32),
)

PRESETS = {device.name: device for device in _PRESETS}
