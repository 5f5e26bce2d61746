"""Quantized checkpoints of tiny models, in the formats that people publish, and the weights that their codes stand for.

Written from the formats' descriptions and not from the code under test: number by number, in plain Python. Weights are
rounded to the nearest code; what counts is that both sides read the same ones.

    folder, weights = write(tiny_models.make("qwen2", path), path2, "gptq", bits=4, group=32)
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Stored(NamedTuple):
    tensors: dict[str, Tensor]  # by the last part of the name
    weight: Tensor  # that they stand for, float32
    config: dict[str, Any]  # quantization_config


def write(source: Path, target: Path, name: str, **options: Any) -> tuple[Path, dict[str, Tensor]]:
    """A quantized copy of a tiny model, and all its weights as floats."""
    tensors = load_file(source / "model.safetensors")
    stored: dict[str, Tensor] = {}
    floats: dict[str, Tensor] = {}
    config: dict[str, Any] = {}
    for key, tensor in tensors.items():
        layer, _, what = key.rpartition(".")
        if what != "weight" or not layer.endswith("_proj"):
            stored[key] = floats[key] = tensor
            continue
        made = FORMATS[name](tensor.float(), **options)
        config = made.config
        stored |= {f"{layer}.{part}": value.contiguous() for part, value in made.tensors.items()}
        floats[key] = made.weight
    shutil.copytree(source, target)
    save_file(stored, target / "model.safetensors")
    written = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(written | {"quantization_config": config}))
    return target, floats


def awq(weight: Tensor, *, group: int = 32) -> Stored:
    codes, scales, zeros = _grouped(weight, 4, group, symmetric=False)
    columns = codes.T.tolist()  # [in][out]
    tensors = {
        "qweight": _words([_awq_words(row) for row in columns]),
        "qzeros": _words([_awq_words(row) for row in zeros.T.tolist()]),
        "scales": scales.T.half(),
    }
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return Stored(tensors, _floats(codes, scales, zeros, group), config)


def gptq(
    weight: Tensor, *, bits: int = 4, group: int = 32, symmetric: bool = True, desc_act: bool = False, v2: bool = False
) -> Stored:
    cols = weight.shape[1]
    if not symmetric:
        weight = weight.clone()
        weight[::3, :group] = weight[::3, :group].abs()  # some zero points are 0
    order = list(range(cols))
    if desc_act:
        random.Random(0).shuffle(order)
    # Groups are runs of the shuffled columns.
    codes, scales, zeros = _grouped(weight[:, order], bits, group, symmetric=symmetric)
    groups = [0] * cols
    for place, column in enumerate(order):
        groups[column] = place // group
    back = torch.tensor([order.index(column) for column in range(cols)])
    exact = _floats(codes, scales, zeros, group)[:, back]
    codes = codes[:, back]
    tensors = {
        # a word has codes of consecutive inputs: [words][out]
        "qweight": _words([_in_words(row, bits) for row in codes.tolist()]).T,
        "qzeros": _words([_in_words(row, bits, 0 if v2 else 1) for row in zeros.T.tolist()]),
        "scales": scales.T.half(),
        "g_idx": torch.tensor(groups, dtype=torch.int32),
    }
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": desc_act, "sym": symmetric}
    return Stored(tensors, exact, config | ({"checkpoint_format": "gptq_v2"} if v2 else {}))


def packed(
    weight: Tensor, *, bits: int = 4, group: int = 32, symmetric: bool = True, plain_zeros: bool = False
) -> Stored:
    """compressed-tensors' W4A16 and W8A16. `plain_zeros`: zero points as versions before 0.9.4 had them."""
    codes, scales, zeros = _grouped(weight, bits, group, symmetric=symmetric)
    tensors = {
        "weight_packed": _words([_in_words(row, bits) for row in codes.tolist()]),
        "weight_scale": scales.bfloat16(),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        in_words = _words([_in_words(row, bits) for row in zeros.T.tolist()]).T
        tensors["weight_zero_point"] = (zeros - (1 << (bits - 1))).to(torch.int8) if plain_zeros else in_words
    scales = scales.bfloat16().float()
    config = _compressed("pack-quantized", bits, "int", "group", symmetric=symmetric)
    return Stored(tensors, _floats(codes, scales, zeros, group), config)


def int8(weight: Tensor, *, by_row: bool = True) -> Stored:
    """compressed-tensors' W8A8."""
    largest = weight.abs().amax(dim=1, keepdim=True) if by_row else weight.abs().max().reshape(1, 1)
    scales = (largest / 127).half().float()
    codes = (weight / scales).round().clamp(-128, 127)
    tensors = {"weight": codes.to(torch.int8), "weight_scale": scales if by_row else scales.reshape(1)}
    config = _compressed("int-quantized", 8, "int", "channel" if by_row else "tensor")
    return Stored(tensors, codes * scales, config)


def fp8(weight: Tensor, *, scale: str = "row", block_rows: int = 48) -> Stored:
    """compressed-tensors' FP8 by row or tensor; DeepSeek's and Qwen's by block of 48 x 32."""
    rows, cols = weight.shape
    block = {"row": (1, cols), "tensor": (rows, cols), "block": (block_rows, 32)}[scale]
    grid = (-(-rows // block[0]), -(-cols // block[1]))
    scales = torch.empty(grid)
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    exact = torch.empty(rows, cols)
    for row in range(grid[0]):
        for col in range(grid[1]):
            where = slice(row * block[0], (row + 1) * block[0]), slice(col * block[1], (col + 1) * block[1])
            scales[row, col] = weight[where].abs().max() / 448
            codes[where] = (weight[where] / scales[row, col]).to(torch.float8_e4m3fn)
            exact[where] = codes[where].float() * scales[row, col]
    if scale == "block":
        config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(block)}
        return Stored({"weight": codes, "weight_scale_inv": scales}, exact, config)
    config = _compressed("float-quantized", 8, "float", "channel" if scale == "row" else "tensor")
    tensors = {"weight": codes, "weight_scale": scales if scale == "row" else scales.reshape(1)}
    return Stored(tensors | {"input_scale": torch.ones(1)}, exact, config)


def nvfp4(weight: Tensor, *, modelopt: bool = False) -> Stored:
    rows, cols = weight.shape
    whole = float(weight.abs().max() / (448 * 6))
    scales = torch.empty(rows, cols // 16, dtype=torch.float8_e4m3fn)
    octets = torch.empty(rows, cols // 2, dtype=torch.uint8)
    exact = torch.empty(rows, cols)
    for row in range(rows):
        codes = []
        for group in range(cols // 16):
            values = weight[row, group * 16 : group * 16 + 16]
            scales[row, group] = values.abs().max() / 6 / whole
            scale = float(scales[row, group]) * whole
            for column, value in enumerate((values / scale).tolist() if scale else [0.0] * 16):
                code = min(range(8), key=lambda code: abs(E2M1[code] - abs(value)))
                codes.append(code | (8 if value < 0 else 0))
                exact[row, group * 16 + column] = (-1 if value < 0 else 1) * E2M1[code] * scale
        octets[row] = torch.tensor([low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)])
    if modelopt:
        tensors = {"weight": octets, "weight_scale": scales, "weight_scale_2": torch.tensor(whole)}
        return Stored(tensors, exact, {"quant_method": "modelopt", "quant_algo": "NVFP4"})
    tensors = {"weight_packed": octets, "weight_scale": scales, "weight_global_scale": torch.tensor([1 / whole])}
    return Stored(tensors, exact, _compressed("nvfp4-pack-quantized", 4, "float", "tensor_group"))


FORMATS = {"awq": awq, "gptq": gptq, "packed": packed, "int8": int8, "fp8": fp8, "nvfp4": nvfp4}


def _grouped(weight: Tensor, bits: int, group: int, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [out, in], scales and zero points [out, groups]."""
    most = (1 << bits) - 1
    parts = weight.reshape(len(weight), -1, group)
    if symmetric:
        scales = (parts.abs().amax(dim=2) / (most // 2)).half().float()
        zeros = torch.full(scales.shape, (most + 1) // 2)
    else:
        low, high = parts.amin(dim=2).clamp(max=0), parts.amax(dim=2).clamp(min=0)
        scales = ((high - low) / most).half().float()
        zeros = (-low / scales).round().clamp(0, most).long()
    codes = (parts / scales[..., None]).round() + zeros[..., None]
    return codes.clamp(0, most).long().reshape(weight.shape), scales, zeros


def _floats(codes: Tensor, scales: Tensor, zeros: Tensor, group: int) -> Tensor:
    parts = codes.reshape(len(codes), -1, group) - zeros[..., None]
    return (parts.float() * scales[..., None]).reshape(codes.shape)


def _awq_words(row: list[int]) -> list[int]:
    return [_join([row[start + AWQ_ORDER[i]] for i in range(8)], 4) for start in range(0, len(row), 8)]


def _in_words(row: list[int], bits: int, less: int = 0) -> list[int]:
    """`less`: from each code, by one subtraction from the word, as GPTQModel does it in GPTQ's first format"""
    per_word = 32 // bits
    padded = row + [0] * (-len(row) % per_word)
    return [_join(padded[start : start + per_word], bits, less) for start in range(0, len(padded), per_word)]


def _join(codes: list[int], bits: int, less: int = 0) -> int:
    """The first in the lowest bits; as the int32 of the same bits."""
    word = sum((code - less) << (bits * place) for place, code in enumerate(codes)) % (1 << 32)
    return word - (1 << 32) if word >= 1 << 31 else word


def _words(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def _compressed(form: str, bits: int, kind: str, strategy: str, *, symmetric: bool = True) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": symmetric}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
