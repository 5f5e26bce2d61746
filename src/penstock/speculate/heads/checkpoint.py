"""The files of a draft head: `config.json` and safetensors. Tensors are taken by name and shape; a tensor that no
reader takes is an error, so that a variant of a format is rejected and not half read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ModelInvalid, ModelNotFound, WeightsMismatch
from penstock.kernels.arrays import Array, to_float32
from penstock.model.weights.safetensors import DTYPES as FLOATS
from penstock.model.weights.source import MappedFile
from penstock.store.hf_folder import read_json
from penstock.store.safetensors import TensorEntry, read_index
from penstock.store.values import Values

INTEGERS: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "I32": np.dtype("<i4")}
NAMED_AT_MOST = 5


class HeadCheckpoint:
    """`prefix`: what names of tensors may begin with; it is dropped."""

    def __init__(self, folder: Path, config: Values, files: Sequence[Path], prefix: str = "model.") -> None:
        self.folder, self.config = folder, config
        self._tensors = {name.removeprefix(prefix): entry for name, entry in read_index(files).items()}
        self._maps = {path: MappedFile(path) for path in files}
        self._left = set(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def floats(self, name: str, shape: tuple[int, ...]) -> Array:
        """float32"""
        return to_float32(self._read(name, shape, FLOATS))

    def optional_floats(self, name: str, shape: tuple[int, ...]) -> Array | None:
        return self.floats(name, shape) if name in self else None

    def token_ids(self, name: str, count: int) -> Array:
        """[count] int64"""
        return self._read(name, (count,), INTEGERS).astype(np.int64)

    def skip(self, *names: str) -> None:
        """These may be there, and are not needed."""
        self._left.difference_update(names)

    def finish(self, kind: str) -> None:
        """Raises if a tensor was not taken."""
        left = sorted(name for name in self._left if not name.endswith("rotary_emb.inv_freq"))
        if left:
            more = f" and {len(left) - NAMED_AT_MOST} more" if len(left) > NAMED_AT_MOST else ""
            raise WeightsMismatch(
                f"{self.folder} has tensors that {kind} does not use: {', '.join(left[:NAMED_AT_MOST])}{more}",
                param="speculate",
            )

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._tensors:
            raise WeightsMismatch(f"{self.folder} lacks the tensor {name}", param="speculate")
        return self._tensors[name]

    def _read(self, name: str, shape: tuple[int, ...], dtypes: dict[str, np.dtype[Any]]) -> Array:
        entry = self._entry(name)
        if entry.shape != shape:
            raise WeightsMismatch(
                f"{self.folder}: tensor {name} has shape {entry.shape}, its config asks for {shape}", param="speculate"
            )
        if entry.dtype not in dtypes:
            raise ModelInvalid(
                f"{self.folder}: tensor {name} has dtype {entry.dtype}, it must be one of {', '.join(dtypes)}",
                param="speculate",
            )
        self._left.discard(name)
        values: Array = self._maps[entry.file].bytes(entry.begin, entry.end).copy().view(dtypes[entry.dtype])
        return values.reshape(shape)


def open_checkpoint(folder: Path) -> HeadCheckpoint:
    if not folder.is_dir():
        raise ModelNotFound(f"no folder {folder} with a draft head", param="speculate")
    config = read_json(folder / "config.json")
    if config is None:
        raise ModelInvalid(f"{folder} has no config.json", param="speculate")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt") for path in folder.glob(pattern))
        hint = f"; {pickles[0]} is a pickle, which is not read: convert it to safetensors" if pickles else ""
        raise ModelInvalid(f"{folder} has no weights (*.safetensors){hint}", param="speculate")
    return HeadCheckpoint(folder, Values(config, str(folder / "config.json")), files)
