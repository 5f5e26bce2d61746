"""Writes tensors to the safetensors files of a folder, with the index that names them if they are several."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

SHARD_BYTES = 2 << 30  # a file is closed once it has so many

DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
}


class ShardWriter:
    """`add` tensors, then `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors: dict[str, Tensor] = {}
        self._shards: list[list[str]] = []  # names of the tensors of each
        self.num_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        self._tensors[name] = tensor.contiguous()
        self.num_bytes += tensor.nbytes
        if sum(tensor.nbytes for tensor in self._tensors.values()) >= SHARD_BYTES:
            self._flush()

    def close(self) -> None:
        if self._tensors:
            self._flush()
        if len(self._shards) == 1:
            self._part(0).rename(self._folder / "model.safetensors")
            return
        files = [f"model-{number + 1:05}-of-{len(self._shards):05}.safetensors" for number in range(len(self._shards))]
        for number, file in enumerate(files):
            self._part(number).rename(self._folder / file)
        names = {name: file for file, shard in zip(files, self._shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": self.num_bytes}, "weight_map": names}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number}.writing"

    def _flush(self) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, tensor in self._tensors.items():
            begin, end = end, end + tensor.nbytes
            header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with self._part(len(self._shards)).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in self._tensors.values():
                file.write(tensor.view(torch.uint8).numpy().data if tensor.ndim else tensor.numpy().tobytes())
        self._shards.append(list(self._tensors))
        self._tensors = {}
