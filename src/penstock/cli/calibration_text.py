"""What `penstock quantize` calibrates on: a text of the user's, or one that the model writes itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InvalidSetting, PenstockError

if TYPE_CHECKING:
    from penstock.quantize.folder import Progress
    from penstock.store.files import ModelFiles

CHUNK, MAX_CHUNKS = 512, 128  # tokens of a piece of a text, and pieces that are used
OWN_CHUNK, OWN_CHUNKS = 256, 32  # of the model's own text
AT_ONCE = 16  # pieces that are written side by side


def read_text(files: ModelFiles, text: Path) -> list[list[int]]:
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


def write_text(files: ModelFiles, start: int, progress: Progress) -> list[list[int]]:
    """Sampled from the model as it is, at temperature 1, from the token `start` on: so it has what the model knows of,
    in the proportions that it knows. The same each time on one kind of device."""
    from penstock import LLM, SamplingParams

    length = min(OWN_CHUNK, files.spec.context)
    chunks: list[list[int]] = []
    # On the CPU, as calibration is: the weights may be too large for a GPU. The variables are a server's.
    with LLM(str(files.weights[0].parent), environ={}, device="cpu", context=length) as llm:
        while len(chunks) < OWN_CHUNKS:
            progress("writing a text", len(chunks), OWN_CHUNKS)
            seeds = range(len(chunks), len(chunks) + AT_ONCE)
            params = [
                SamplingParams(max_tokens=length - 1, temperature=1.0, seed=seed, ignore_eos=True) for seed in seeds
            ]
            completions = llm.generate([[start]] * AT_ONCE, params, progress=False)
            for completion in completions:
                if completion.error is not None:
                    raise PenstockError(f"{files.name} cannot write a text to be calibrated on: {completion.error}")
                chunks.append([start, *completion.tokens])
    progress("writing a text", OWN_CHUNKS, OWN_CHUNKS)
    return chunks


def start_token(files: ModelFiles) -> int | None:
    """What a text begins with: the config's BOS token, or the one that ends a text, after which another begins."""
    config = files.weights[0].parent / "config.json"
    token = json.loads(config.read_text()).get("bos_token_id") if config.is_file() else None
    if isinstance(token, int) and 0 <= token < files.spec.vocab_size:
        return token
    return next(iter(files.spec.end_tokens), None)
