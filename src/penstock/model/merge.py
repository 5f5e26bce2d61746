"""A model and a LoRA adapter merged into one: a Hugging Face folder whose weights have the adapter's deltas in them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import Array, to_float32
from penstock.model.weights.adapter import Delta, read_adapter
from penstock.model.weights.safetensors import DTYPES, SafetensorsSource
from penstock.store.adapter_spec import AdapterFiles
from penstock.store.disk import whole_output
from penstock.store.files import ModelFiles
from penstock.store.safetensors import DTYPE_BYTES, read_index

Deltas = Mapping[tuple[int | None, str], Delta]

COPIED = (".json", ".jinja", ".txt", ".model", ".md")  # config, tokenizer, template, licence
PARTS = {"qkv_proj": ("q", "k", "v"), "gate_up_proj": ("gate", "up")}  # of modules that checkpoints have fused
_LAYER = re.compile(r".*\blayers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.weight")
_TABLE = re.compile(r"(?:.*\.)?(embed_tokens|lm_head)\.weight")


class _Output(NamedTuple):
    """A tensor of the merged model."""

    name: str
    source: str  # tensor of the base
    parts: tuple[tuple[int | None, str], ...]  # projections whose deltas are added, one below the other


def merge(files: ModelFiles, adapter: AdapterFiles, out: Path, progress: Callable[[int, int], None]) -> int:
    """Write the folder `out`, whole or not at all; gives the bytes of its weights. `check_adapter` has been passed."""
    if files.format != "safetensors" or files.spec.quantization is not None:
        raise ModelInvalid(
            f"{files.name} is {files.spec.weights}: an adapter can be merged into a Hugging Face folder of floats "
            "only; serve it beside the model instead (--adapter), which takes quantized models, too",
            param="model",
        )
    deltas: Deltas = {(one.layer, one.projection): one for one in read_adapter(adapter, files.spec)}
    tables = {key for key in deltas if key[0] is None}
    untied = files.spec.tied and bool(tables)  # what is added to one of embedding and head is not to the other
    with whole_output(out) as draft:
        draft.mkdir()
        size = _write(files, deltas, draft / "model.safetensors", untied, progress)
        _copy_files(files.weights[0].parent, draft, untied)
    return size


def _outputs(names: list[str], untied: bool, tied: bool) -> list[_Output]:
    outputs = []
    for name in names:
        if found := _LAYER.fullmatch(name):
            parts = PARTS.get(found[2], (found[2].removesuffix("_proj"),))
            outputs.append(_Output(name, name, tuple((int(found[1]), part) for part in parts)))
        elif (found := _TABLE.fullmatch(name)) and not (tied and found[1] == "lm_head"):
            outputs.append(_Output(name, name, ((None, "head" if found[1] == "lm_head" else "embed"),)))
            if untied:
                outputs.append(_Output("lm_head.weight", name, ((None, "head"),)))
        elif found is None:
            outputs.append(_Output(name, name, ()))
    return outputs


def _write(files: ModelFiles, deltas: Deltas, path: Path, untied: bool, progress: Callable[[int, int], None]) -> int:
    index, source = read_index(files.weights), SafetensorsSource(files.weights)
    outputs = _outputs(list(index), untied, files.spec.tied)
    used = {part for one in outputs for part in one.parts}
    if lost := sorted(map(str, deltas.keys() - used)):
        raise ModelInvalid(f"{files.name} has no tensors for {', '.join(lost[:5])} of the adapter", param="adapter")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in outputs:
        entry = index[one.source]
        begin, end = end, end + prod(entry.shape) * DTYPE_BYTES[entry.dtype]
        header[one.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [begin, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # tensors begin at a multiple of eight bytes
    with path.open("xb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for done, one in enumerate(outputs):
            _write_tensor(file, one, source, index[one.source].dtype, deltas)
            source.release(one.source)
            progress(done + 1, len(outputs))
    return end


def _write_tensor(file: BinaryIO, one: _Output, source: SafetensorsSource, dtype: str, deltas: Deltas) -> None:
    stored = source.read_stored(one.source)
    if not any(part in deltas for part in one.parts):
        file.write(stored.tobytes())
        return
    if dtype not in DTYPES:
        raise ModelInvalid(f"{one.source} has dtype {dtype}: an adapter can be merged into floats only", param="model")
    merged = np.array(to_float32(stored), dtype=np.float32)
    rows = {part: deltas[part] for part in one.parts if part in deltas}
    start, sizes = 0, _sizes(one, rows, len(merged))
    for part, size in zip(one.parts, sizes, strict=True):
        if part in rows:
            merged[start : start + size] += _product(rows[part])
        start += size
    file.write(_rounded(merged, dtype).tobytes())


def _sizes(one: _Output, rows: Mapping[tuple[int | None, str], Delta], total: int) -> list[int]:
    """Rows of each part. A fused module has either all of its deltas or none, since one adapter gave them."""
    if len(one.parts) == 1:
        return [total]
    return [len(rows[part].b) for part in one.parts]


def _product(delta: Delta) -> Array:
    """What is added to the weight; that of an embedding has a row for each token."""
    product: Array = (delta.b @ delta.a) * np.float32(delta.scale)
    return product.T if delta.projection == "embed" else product


def _rounded(values: Array, dtype: str) -> Array:
    if dtype != "BF16":
        return values.astype(DTYPES[dtype])
    bits = values.view(np.uint32)
    bits = bits + (0x7FFF + (bits >> 16 & 1))  # ties to even
    return (bits >> 16).astype(np.uint16)


def _copy_files(folder: Path, out: Path, untied: bool) -> None:
    for path in folder.iterdir():
        if path.is_file() and path.suffix in COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, out / path.name)
    if untied:
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        config["tie_word_embeddings"] = False
        if isinstance(config.get("text_config"), dict):
            config["text_config"]["tie_word_embeddings"] = False
        (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
