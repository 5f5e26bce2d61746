"""penstock quantize: a quantized checkpoint from one of floats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from penstock.cli.options import debug_option
from penstock.cli.progress import counting
from penstock.cli.text import size_text
from penstock.errors import InvalidSetting
from penstock.store.resolve import resolve
from penstock.system.extras import require_torch

if TYPE_CHECKING:
    from penstock.quantize.formats import Target
    from penstock.store.files import ModelFiles
    from penstock.store.spec import ModelSpec

TARGETS = ("awq", "gptq", "int4", "int8", "fp8")
GGUF_TARGETS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
CALIBRATED = ("awq", "gptq")
UNGROUPED = ("fp8", *GGUF_TARGETS)
ROUNDED = ("int4", *GGUF_TARGETS)  # a text changes nothing
# By bits of a weight: the first that divides all sizes of the model is used, unless --group says another.
GROUPS = {4: (128, 64, 32), 8: (64, 32)}
CHUNK, MAX_CHUNKS = 512, 128  # tokens of a piece of the text, and pieces that are used


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice((*TARGETS, *GGUF_TARGETS)),
    required=True,
    help="awq, gptq: 4 bits, chosen by the model's inputs on a text. int8, fp8: 8 bits, better with a text. int4: "
    "rounded to nearest. q4_0 to q8_0: a GGUF file, rounded to nearest.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Calibration text: required for awq and gptq, makes int8 and fp8 better.",
)
@click.option(
    "--group",
    type=click.IntRange(min=0),
    help="Inputs with one scale, 8 or more. int8 with 0 has one for each row, as W8A8 kernels need it. [default: int8 "
    "64, 4 bits 128, or the next smaller power of two that fits]",
)
@debug_option
def quantize(model: str, out: Path, target: str, text: Path | None, group: int | None) -> None:
    """Write a quantized copy of MODEL to the folder OUT, or to the file OUT.gguf.

    MODEL is a Hugging Face folder or hub id whose weights are floats. The linear layers of its decoder are quantized;
    embeddings, output head and norms keep their type. awq and gptq need a --text of the kind the model will read, some
    thousand words or more.
    """
    if target in CALIBRATED and text is None:
        raise InvalidSetting(f"{target} needs --text, to see what the model's inputs look like", param="text")
    if text is not None and target in ROUNDED:
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
    size = _quantize(files, out, target, text, group)
    scales = f" in groups of {group}" if group else ""
    click.echo(f"{out}: {target}{scales}, {size_text(size)} of weights ({size_text(before)} before)")


def _default_group(spec: ModelSpec, target: str) -> int:
    """0: a scale for each row, or what a GGUF has."""
    if target in UNGROUPED:
        return 0
    groups = GROUPS[8 if target == "int8" else 4]
    sizes = (spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim)
    fitting = (group for group in groups if all(size % group == 0 for size in sizes))
    return next(fitting, 0 if target == "int8" else groups[0])


def _quantize(files: ModelFiles, out: Path, target: str, text: Path | None, group: int) -> int:
    if target in GGUF_TARGETS:
        from penstock.quantize.gguf_model import write_gguf_model

        with counting() as progress:
            return write_gguf_model(files, out, target, progress)
    require_torch("quantize")
    from penstock.quantize.folder import quantize_folder

    chunks = _chunks(files, text) if text else []
    with counting() as progress:
        return quantize_folder(files, out, cast("Target", target), group=group, chunks=chunks, progress=progress)


def _chunks(files: ModelFiles, text: Path) -> list[list[int]]:
    from penstock.tokenize import Tokenizer

    if files.tokenizer is None:
        raise InvalidSetting(f"{files.name} has no tokenizer to read --text with", param="text")
    try:
        tokens = Tokenizer.load(files.tokenizer).encode(text.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"{text} is not UTF-8: {error}", param="text") from None
    size = min(CHUNK, files.spec.context)
    chunks = [tokens[start : start + size] for start in range(0, len(tokens), size)][:MAX_CHUNKS]
    if len(tokens) < 2 * size:
        raise InvalidSetting(f"{text} has {len(tokens)} tokens; --text needs {2 * size} or more", param="text")
    return [chunk for chunk in chunks if len(chunk) > 1]
