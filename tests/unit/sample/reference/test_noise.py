"""The noise is exactly what its docstring says, and looks random in every direction it can vary."""

import math

import pytest
import torch

from penstock.sample.noise_stream import noise_stream
from penstock.sample.reference import noise

GOLDEN = 0x9E3779B97F4A7C15
CPU = torch.device("cpu")


def mix64(x: int) -> int:
    x %= 2**64
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % 2**64
    x ^= x >> 27
    x = x * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def reference_uniform(seed: int, choice: int, position: int, token: int) -> float:
    """The docstring of `noise`, in Python's unbounded integers."""
    key = mix64(mix64(mix64(seed + GOLDEN) + (choice + 1) * GOLDEN) + position * GOLDEN)
    h = token
    h ^= h >> 16
    h = h * 0x85EBCA6B % 2**32
    h ^= h >> 13
    h = h * 0xC2B2AE35 % 2**32
    h ^= h >> 16
    h = ((h ^ key % 2**32) * 0x2C1B3C6D + (key >> 32)) % 2**32
    h ^= h >> 16
    h = h * 0x297A2D39 % 2**32
    h ^= h >> 15
    h = h * 0x85EBCA6B % 2**32
    k = h >> 9
    k = k - 2**23 if k >= 2**22 else k
    return (k + 2**22 + 0.5) / 2**23


def keys(*cases: tuple[int, int, int]) -> torch.Tensor:
    streams = torch.tensor([noise_stream(seed, choice) for seed, choice, _ in cases])
    return noise.row_keys(streams, torch.tensor([position for *_, position in cases]))


def test_matches_the_documented_arithmetic() -> None:
    cases = [(0, 0, 0), (1, 0, 5), (2**64 - 1, 127, 2**31), (-(2**63), 3, 131071), (1234567890123, 1, 1)]
    tokens = [0, 1, 2, 77, 49151, 262143]
    hashes = noise.token_hashes(262144, CPU)[tokens]
    expected = [[reference_uniform(*case, token) for token in tokens] for case in cases]
    assert noise.uniform(keys(*cases), hashes).tolist() == expected


def test_does_not_depend_on_rows_beside_it_or_on_how_the_vocabulary_is_cut() -> None:
    cases = [(seed, choice, position) for seed in (3, 4) for choice in (0, 1) for position in (10, 11)]
    hashes = noise.token_hashes(1000, CPU)
    whole = noise.bits(keys(*cases), hashes)
    some = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:70]
    assert torch.equal(noise.bits(keys(cases[5]), hashes[some]), whole[5:6, some])
    each = torch.stack([some, some.flip(0)])  # different tokens for each row
    assert torch.equal(noise.bits(keys(cases[5], cases[2]), hashes[each])[1], whole[2, some.flip(0)])


def test_uniform_never_reaches_its_ends_and_gumbel_is_finite() -> None:
    ends = torch.tensor([-(2**22), 2**22 - 1], dtype=torch.int32)
    u = ends.to(torch.float32).mul_(2.0**-23).add_(0.5 + 2.0**-24)
    assert u.tolist() == [2.0**-24, 1 - 2.0**-24]
    values = noise.gumbel(keys(*((0, 0, p) for p in range(200))), noise.token_hashes(5000, CPU))
    assert values.isfinite().all()
    assert values.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert values.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_seed_counts_modulo_2_to_the_64() -> None:
    assert noise_stream(-1, 0) == noise_stream(2**64 - 1, 0)
    assert len({noise_stream(seed, choice) for seed in range(-50, 50) for choice in range(20)}) == 2000


AXES = {
    "seed": lambda i: (i, 0, 17),
    "choice": lambda i: (9, i, 17),
    "position": lambda i: (9, 0, i),
    "spread seeds": lambda i: (i << 32, 0, 17),
}


@pytest.mark.parametrize("axis", AXES)
def test_neighbours_along_an_axis_are_independent(axis: str) -> None:
    """Neighbouring rows: every output bit flips half of the time, and uniforms do not correlate at any lag."""
    rows, tokens = 400, 1024
    row_keys = keys(*(AXES[axis](i) for i in range(rows)))
    bits = noise.bits(row_keys, noise.token_hashes(tokens, CPU))
    for lag in (1, 2, 7):
        _assert_bits_flip(bits[lag:], bits[:-lag])
    u = noise.uniform(row_keys, noise.token_hashes(tokens, CPU)) - 0.5
    for lag in (1, 2, 3, 16, 128):
        _assert_uncorrelated(u[lag:], u[:-lag])


def test_neighbouring_tokens_are_independent() -> None:
    row_keys = keys(*((5, 0, i) for i in range(200)))
    bits = noise.bits(row_keys, noise.token_hashes(2048, CPU))
    u = noise.uniform(row_keys, noise.token_hashes(2048, CPU)) - 0.5
    for lag in (1, 2, 3, 16, 256, 1024):
        _assert_bits_flip(bits[:, lag:], bits[:, :-lag])
        _assert_uncorrelated(u[:, lag:], u[:, :-lag])


def test_every_bit_of_both_key_halves_reaches_every_output_bit() -> None:
    row_keys = keys(*((i, 0, 0) for i in range(64)))
    hashes = noise.token_hashes(1024, CPU)
    bits = noise.bits(row_keys, hashes)
    for bit in range(64):
        flipped = noise.bits(row_keys ^ (1 << bit if bit < 63 else -(2**63)), hashes)
        _assert_bits_flip(bits, flipped, tolerance=0.02)


@pytest.mark.parametrize("along", ["tokens", "positions"])
def test_uniforms_are_uniform(along: str) -> None:
    """Chi-square over 256 cells of the value, and of pairs of neighbours over 16 × 16 cells."""
    shape = (8, 65536) if along == "tokens" else (65536, 8)
    u = noise.uniform(keys(*((1, 0, i) for i in range(shape[0]))), noise.token_hashes(shape[1], CPU))
    u = u if along == "tokens" else u.T
    _assert_flat(torch.histc(u, 256, 0.0, 1.0))
    cells = (u * 16).long()
    pairs = cells[:, 0::2] * 16 + cells[:, 1::2]
    _assert_flat(torch.bincount(pairs.reshape(-1), minlength=256).float())
    for line in u:  # Kolmogorov-Smirnov: 1.95 / sqrt(n) is passed once in a thousand
        ordered = line.double().sort().values
        steps = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
        assert (ordered - steps).abs().max().item() < 2.3 / math.sqrt(len(ordered))


def _assert_bits_flip(a: torch.Tensor, b: torch.Tensor, tolerance: float = 0.01) -> None:
    difference = a ^ b
    for bit in range(23):
        share = ((difference >> bit) & 1).float().mean().item()
        assert share == pytest.approx(0.5, abs=tolerance), f"bit {bit}"


def _assert_uncorrelated(a: torch.Tensor, b: torch.Tensor) -> None:
    """Both centred, variance 1/12: the mean product has deviation 1 / (12 sqrt(n)). Five deviations."""
    assert abs((a * b).double().mean().item()) * 12 * math.sqrt(a.numel()) < 5


def _assert_flat(counts: torch.Tensor) -> None:
    """Chi-square with many degrees of freedom is nearly normal: mean df, variance 2 df. Five deviations."""
    expected = counts.sum() / len(counts)
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    df = len(counts) - 1
    assert abs(chi_square - df) < 5 * math.sqrt(2 * df)
