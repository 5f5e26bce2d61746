"""From a Hugging Face folder to a quantized one: read, calibrate, quantize, write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from penstock.errors import InvalidSetting, ModelInvalid, PenstockError
from penstock.kernels.interface import Rotary
from penstock.model import Source, open_source, registry
from penstock.model.layers.rope import rotary_table
from penstock.model.weights import loader
from penstock.model.weights.dense_form import DenseForm, to_tensor
from penstock.model.weights.map import plus_one
from penstock.model.weights.place import Placement, placements
from penstock.quantize.awq import best_factors
from penstock.quantize.calibrate import Inputs, observe
from penstock.quantize.formats import CALIBRATED, GROUPED, Target, config, grid, store_codes
from penstock.quantize.gptq import gptq
from penstock.quantize.round_codes import round_to_nearest
from penstock.quantize.round_rows import ROW_FORMATS, store_rows
from penstock.quantize.shards import ShardWriter
from penstock.store.disk import whole_output
from penstock.store.files import ModelFiles
from penstock.store.spec import ModelSpec, Rope

# Names of what is done, and how much of it
Progress = Callable[[str, int, int], None]

LINEAR = ("qkv", "output", "gate_up", "down")  # the matrices that are quantized, by our names

COPIED = (".json", ".jinja", ".txt", ".model", ".md")  # config, tokenizer, template, licence


def quantize_folder(
    files: ModelFiles,
    out: Path,
    target: Target,
    *,
    group: int,
    text: Callable[[], Sequence[Sequence[int]]],
    progress: Progress,
) -> int:
    """Write `out`; gives the bytes of its weights. `group`: inputs with one scale, 0: a row has one. `text` gives token
    ids, in pieces, by whose inputs rounding is chosen; of none, which is not for awq and gptq, weights are rounded to
    nearest."""
    _check(files, target, group)
    with whole_output(out) as draft:
        draft.mkdir()  # before the work: what cannot be written is known at once
        return _write(files, draft, target, group, _read(text), progress)


def _read(text: Callable[[], Sequence[Sequence[int]]]) -> Sequence[Sequence[int]]:
    try:
        return text()
    except OSError as error:  # which would be taken for one of the output
        raise PenstockError(f"there is no text to be calibrated on: {error}") from error


def _write(
    files: ModelFiles, out: Path, target: Target, group: int, chunks: Sequence[Sequence[int]], progress: Progress
) -> int:
    spec, source = files.spec, open_source(files.weights, files.format)
    inputs = _observe(spec, source, chunks, progress) if chunks else {}
    parameters = registry.architecture(spec.architecture).weight_map.parameters
    matrices = Matrices(source, list(placements(parameters, "hf", spec)), spec)
    if target == "awq":
        _scale_channels(matrices, inputs, group, progress)
    writer = ShardWriter(out)
    names = matrices.linear
    for done, placement in enumerate(names.values()):
        for name, weight in matrices.parts(placement):
            for what, tensor in _store(target, weight, inputs.get(placement.name), group).items():
                writer.add(f"{name.removesuffix('.weight')}.{what}", tensor)
        progress("quantizing", done + 1, len(names))
    for name, tensor in matrices.others():
        writer.add(name, tensor)
    writer.close()
    _copy_files(files.weights[0].parent, out, config(target, group))
    return writer.num_bytes


def _check(files: ModelFiles, target: Target, group: int) -> None:
    spec = files.spec
    if files.format != "safetensors" or spec.quantization:
        raise ModelInvalid(
            f"{files.name} is {spec.weights}: only a Hugging Face folder of floats can be quantized", param="model"
        )
    if target in GROUPED and not group:
        raise InvalidSetting(f"{target} needs a group", param="group")
    if target == "fp8" and group:
        raise InvalidSetting("fp8 has a scale for each row: it takes no group", param="group")
    sizes = {"hidden_size": spec.hidden_size, "intermediate_size": spec.intermediate_size}
    sizes["heads x head_dim"] = spec.num_heads * spec.head_dim
    for what, size in sizes.items():
        if group and size % group:
            raise InvalidSetting(f"group {group} does not divide {what} of {spec.name}, which is {size}", param="group")


def _observe(spec: ModelSpec, source: Source, chunks: Sequence[Sequence[int]], progress: Progress) -> dict[str, Inputs]:
    """By the name of the matrix."""
    kind = registry.architecture(spec.architecture)
    form = DenseForm(torch.float32, torch.device("cpu"))
    weights = loader.load(kind.weight_map, source, spec, form)

    def rotary(rope: Rope) -> Rotary:
        return Rotary(form.constant(rotary_table(rope, max(map(len, chunks)))), rope.dim)

    ops = observe(kind(spec, weights, rotary), chunks, lambda done, count: progress("calibrating", done, count))
    return {name: ops.of(weight) for name, weight in weights.matrices.items() if name.rpartition(".")[2] in LINEAR}


@dataclass(slots=True)
class Matrices:
    """The checkpoint's tensors, with changes."""

    source: Source
    placed: list[Placement]
    spec: ModelSpec
    changed: dict[str, Tensor] = field(default_factory=dict)

    @property
    def linear(self) -> dict[str, Placement]:
        return {one.name: one for one in self.placed if one.name.rpartition(".")[2] in LINEAR}

    def placement(self, name: str) -> Placement | None:
        return next((one for one in self.placed if one.name == name), None)

    def read(self, name: str) -> Tensor:
        """As it is stored, or changed."""
        assert self.source.shapes is not None
        if name not in self.changed:
            return to_tensor(self.source.read(name, self.source.shapes[name]))
        return self.changed[name]

    def parts(self, placement: Placement) -> Iterator[tuple[str, Tensor]]:
        for piece in placement.pieces:
            yield piece.name, self.read(piece.name).float()

    def multiply(self, placement: Placement, factors: Tensor) -> None:
        """Rows by factors [rows], or everything by what can be broadcast."""
        begin = 0
        for piece in placement.pieces:
            tensor = self.read(piece.name)
            end = begin + len(tensor)
            rows = factors[begin:end] if factors.shape[0] > 1 and factors.ndim == tensor.ndim else factors
            values = tensor.float()
            scaled = (values + 1) * rows - 1 if piece.transform is plus_one else values * rows
            self.changed[piece.name] = scaled
            begin = end

    def others(self) -> Iterator[tuple[str, Tensor]]:
        taken = {piece.name for one in self.linear.values() for piece in one.pieces}
        for name in self.source.shapes or ():
            if name not in taken:
                yield name, self.read(name)


def _scale_channels(matrices: Matrices, inputs: Mapping[str, Inputs], group: int, progress: Progress) -> None:
    """AWQ: multiply columns, and divide what gives the inputs: a norm, the rows of up or those of v."""
    spec = matrices.spec
    for layer in range(spec.num_layers):
        prefix = f"layers.{layer}."
        for name, giver, rows in (
            ("qkv", "attention_norm", spec.hidden_size),
            ("gate_up", "mlp_norm", spec.hidden_size),
            ("down", "gate_up", spec.intermediate_size),
            ("output", "qkv", spec.num_kv_heads * spec.head_dim),
        ):
            placement, found = matrices.linear[prefix + name], inputs[prefix + name]
            if found.mean.shape[0] != rows:
                continue  # several heads of q read one head of v
            weights = [weight for _, weight in matrices.parts(placement)]
            factors = best_factors(weights, found.mean, found.hessian, grid("awq", group))
            matrices.multiply(placement, factors[None])
            _divide(matrices, prefix + giver, factors)
        progress("scaling channels", layer + 1, spec.num_layers)


def _divide(matrices: Matrices, name: str, factors: Tensor) -> None:
    """The last rows of a parameter and of its bias, as many as there are factors."""
    for one in (matrices.placement(name), matrices.placement(f"{name}_bias")):
        if one is None:
            continue
        rows = torch.ones(one.shape[0])
        rows[-len(factors) :] /= factors
        matrices.multiply(one, rows[:, None] if one.is_matrix else rows)


def _store(target: Target, weight: Tensor, inputs: Inputs | None, group: int) -> dict[str, Tensor]:
    if not group:
        return store_rows(ROW_FORMATS[target], weight, None if inputs is None else inputs.hessian)
    assert inputs is not None or target not in CALIBRATED
    if target != "awq" and inputs is not None:
        return store_codes(target, gptq(weight, inputs.hessian, grid(target, group)))
    return store_codes(target, round_to_nearest(weight, grid(target, group)))


def _copy_files(folder: Path, out: Path, quantization: Mapping[str, object]) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in COPIED and "safetensors" not in path.name:
            shutil.copy(path, out / path.name)
    written = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(written | {"quantization_config": quantization}, indent=2))
