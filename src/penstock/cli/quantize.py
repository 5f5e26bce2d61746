"""penstock quantize: a quantized checkpoint from one of floats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from penstock.cli.calibration_text import read_text, start_token, write_text
from penstock.cli.options import debug_option
from penstock.cli.progress import counting
from penstock.cli.text import size_text
from penstock.errors import InvalidSetting, OutOfMemory
from penstock.store.resolve import resolve
from penstock.system.extras import require_torch
from penstock.system.resources import host_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.quantize.folder import Progress
    from penstock.quantize.formats import Target
    from penstock.store.files import ModelFiles
    from penstock.store.spec import ModelSpec

TARGETS = ("awq", "gptq", "int4", "int8", "fp8")
GGUF_TARGETS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
CALIBRATED = ("awq", "gptq")
OWN_TEXT = (*CALIBRATED, "fp8")  # without --text calibrated on a text that the model writes
UNGROUPED = ("fp8", *GGUF_TARGETS)
ROUNDED = "rounded to nearest"
# By bits of a weight: the first that divides all sizes of the model is used, unless --group says another.
GROUPS = {4: (128, 64, 32), 8: (64, 32)}


class TextOption(click.Path):
    """A file, `own` or `none`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in ("own", "none") else super().convert(value, param, ctx)


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice((*TARGETS, *GGUF_TARGETS)),
    required=True,
    help="awq, gptq: 4 bits, calibrated on a text. fp8: 8 bits, calibrated on a text. int4, int8: rounded to nearest, "
    "or calibrated with --text. q4_0 to q8_0: a GGUF file, rounded to nearest.",
)
@click.option(
    "--text",
    type=TextOption(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE|own|none",
    help="Calibration text: a file with some thousand words of the kind that the model will read; own, a text that the "
    "model writes itself; none, round to nearest. [default: own for awq, gptq and fp8, none for the others]",
)
@click.option(
    "--group",
    type=click.IntRange(min=0),
    help="Inputs with one scale, 8 or more. int8 with 0 has one for each row, as W8A8 kernels need it. [default: int8 "
    "64, 4 bits 128, or the next smaller power of two that fits]",
)
@debug_option
def quantize(model: str, out: Path, target: str, text: Path | Literal["own", "none"] | None, group: int | None) -> None:
    """Write a quantized copy of MODEL to the folder OUT, or to the file OUT.gguf.

    MODEL is a Hugging Face folder or hub id whose weights are floats. The linear layers of its decoder are quantized;
    embeddings, output head and norms keep their type.
    """
    if target in CALIBRATED and text == "none":
        raise InvalidSetting(f"{target} needs a text, to see what the model's inputs look like", param="text")
    if text not in (None, "none") and target in GGUF_TARGETS:
        raise InvalidSetting(f"{target} is rounded to nearest: it takes no --text", param="text")
    if group and target in UNGROUPED:
        scales = "each row" if target == "fp8" else "every 32 inputs"
        raise InvalidSetting(f"{target} has a scale for {scales}: it takes no --group", param="group")
    if group is not None and 0 < group < 8:
        raise InvalidSetting(f"--group {group}: a group has at least 8 inputs", param="group")
    files = resolve(model)
    if group is None:
        group = _default_group(files.spec, target)
    before = sum(path.stat().st_size for path in files.weights)
    size, how = _write_gguf(files, out, target) if target in GGUF_TARGETS else _write(files, out, target, text, group)
    scales = f" in groups of {group}" if group else ""
    click.echo(f"{out}: {target}{scales}, {how}, {size_text(size)} of weights ({size_text(before)} before)")


def _default_group(spec: ModelSpec, target: str) -> int:
    """0: a scale for each row, or what a GGUF has."""
    if target in UNGROUPED:
        return 0
    groups = GROUPS[8 if target == "int8" else 4]
    sizes = (spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim)
    fitting = (group for group in groups if all(size % group == 0 for size in sizes))
    return next(fitting, 0 if target == "int8" else groups[0])


def _write_gguf(files: ModelFiles, out: Path, target: str) -> tuple[int, str]:
    from penstock.quantize.gguf_model import write_gguf_model

    with counting() as progress:
        return write_gguf_model(files, out, target, progress), ROUNDED


def _write(
    files: ModelFiles, out: Path, target: str, text: Path | Literal["own", "none"] | None, group: int
) -> tuple[int, str]:
    require_torch("quantize")
    from penstock.quantize.folder import quantize_folder

    with counting() as progress:
        find_text, how = _calibration(files, target, text, progress)
        size = quantize_folder(files, out, cast("Target", target), group=group, text=find_text, progress=progress)
    return size, how


def _calibration(
    files: ModelFiles, target: str, text: Path | Literal["own", "none"] | None, progress: Progress
) -> tuple[Callable[[], list[list[int]]], str]:
    """What gives the token ids of the text, and what to say of it."""
    if text == "none" or (text is None and target not in OWN_TEXT):
        return list, ROUNDED
    if (problem := _too_little_memory(files)) is not None:
        if text is not None or target in CALIBRATED:
            raise OutOfMemory(f"{problem}; --text none rounds to nearest, for int8, int4 and fp8", param="text")
        click.echo(f"{problem}: {target} is rounded to nearest", err=True)
        return list, ROUNDED
    if isinstance(text, Path):
        chunks = read_text(files, text)
        return lambda: chunks, f"calibrated on {sum(map(len, chunks)):,} tokens of {text}"
    if (start := start_token(files)) is None:
        reason = f"{files.name} names no token that begins or ends a text, so it cannot write one to be calibrated on"
        if text == "own" or target in CALIBRATED:
            raise InvalidSetting(f"{reason}: {target} needs a file as --text", param="text")
        click.echo(f"{reason}: {target} is rounded to nearest", err=True)
        return list, ROUNDED
    return lambda: write_text(files, start, progress), "calibrated on a text that the model wrote"


def _too_little_memory(files: ModelFiles) -> str | None:
    """What calibration would need and there is not; None if it fits."""
    from penstock.quantize.calibrate import hessian_bytes

    stored = sum(path.stat().st_size for path in files.weights)
    needed = hessian_bytes(files.spec) + stored * (1 if files.spec.dtype == "float32" else 2)
    if needed <= (free := host_bytes()):
        return None
    return f"calibration of {files.name} takes {size_text(needed)} of memory, and {size_text(free)} are free"
