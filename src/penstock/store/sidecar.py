"""What is read from a GGUF file once and kept beside it: spec, tokenizer, chat template.

Reading a vocabulary of 50,000 tokens out of GGUF metadata and building a tokenizer takes a second; reading this back
takes a millisecond. A sidecar is used only if this version wrote it for weights of this size and time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.store import gguf
from penstock.store.disk import write_whole
from penstock.store.files import ModelFiles
from penstock.store.gguf_spec import spec_from_header
from penstock.store.gguf_tokenizer import build_tokenizer
from penstock.store.spec import ModelSpec
from penstock.system import typed

logger = logging.getLogger(__name__)

VERSION = 4  # raise it when what is written here, or how it is derived, changes

SPEC, TOKENIZER, TEMPLATE = "spec.json", "tokenizer.json", "chat_template.jinja"

# GGUF's name of a special token -> what chat templates call it
SPECIAL_TOKENS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of spec.json."""

    version: int
    weights: str  # a name in the sidecar's folder, or an absolute path
    size_bytes: int
    mtime_ns: int
    spec: ModelSpec
    special_tokens: dict[str, str]
    sampling: dict[str, float | int]
    license: str | None
    has_tokenizer: bool
    has_template: bool


class _Version(msgspec.Struct):
    version: int


def read(folder: Path) -> ModelFiles | None:
    """The model this sidecar describes; None if there is none, or if it has to be written anew."""
    try:
        content = (folder / SPEC).read_bytes()
        if typed.decode_json(content, _Version).version != VERSION:
            return None
        facts = typed.decode_json(content, Facts)
        state = (folder / facts.weights).stat()
        template = (folder / TEMPLATE).read_text(encoding="utf-8") if facts.has_template else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if (state.st_size, state.st_mtime_ns) != (facts.size_bytes, facts.mtime_ns):
        return None
    if facts.has_tokenizer and not (folder / TOKENIZER).is_file():
        return None
    return _files(folder, facts, template)


def write(
    folder: Path,
    weights: str,
    *,
    name: str,
    license: str | None = None,
    sampling: Mapping[str, float | int] | None = None,
) -> ModelFiles:
    """Describe the GGUF file `weights` (a name in `folder`, or an absolute path). spec.json comes last: it counts.

    `license` and `sampling` are what is known of them from elsewhere; the file's own sampling wins.
    """
    path = folder / weights
    state = path.stat()
    header = gguf.read_header(path)
    spec = spec_from_header(header, path, name)
    tokenizer = build_tokenizer(header) if header.get("tokenizer.ggml.tokens") else None
    template = _text(header.get("tokenizer.chat_template"))
    facts = Facts(
        version=VERSION,
        weights=weights,
        size_bytes=state.st_size,
        mtime_ns=state.st_mtime_ns,
        spec=spec,
        special_tokens=_special_tokens(header),
        sampling={**(sampling or {}), **_sampling(header, path)},
        license=license or _text(header.get("general.license")),
        has_tokenizer=tokenizer is not None,
        has_template=template is not None,
    )
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        write_whole(folder / TOKENIZER, tokenizer.encode())
    if template is not None:
        write_whole(folder / TEMPLATE, template.encode())
    write_whole(folder / SPEC, msgspec.json.format(msgspec.json.encode(facts)))
    return _files(folder, facts, template)


def _files(folder: Path, facts: Facts, template: str | None) -> ModelFiles:
    return ModelFiles(
        name=facts.spec.name,
        format="gguf",
        weights=(folder / facts.weights,),
        spec=facts.spec,
        tokenizer=folder / TOKENIZER if facts.has_tokenizer else None,
        chat_template=template,
        special_tokens=facts.special_tokens,
        sampling=facts.sampling,
        license=facts.license,
    )


def _special_tokens(header: gguf.Header) -> dict[str, str]:
    tokens = header.get("tokenizer.ggml.tokens", [])
    ids = {ours: header.get(f"tokenizer.ggml.{theirs}_token_id") for theirs, ours in SPECIAL_TOKENS.items()}
    texts = {
        name: _text(tokens[token]) for name, token in ids.items() if isinstance(token, int) and 0 <= token < len(tokens)
    }
    return {name: text for name, text in texts.items() if text}


def _sampling(header: gguf.Header, path: Path) -> dict[str, float | int]:
    values = {ours: header.get(f"general.sampling.{theirs}") for theirs, ours in SAMPLING.items()}
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    for name in [name for name, value in numbers.items() if not math.isfinite(value)]:  # JSON has none of these
        logger.warning(
            "%s recommends a sampling that cannot be, and is ignored: %s is %s", path, name, numbers.pop(name)
        )
    return numbers


def _text(value: Any) -> str | None:
    """Metadata is bytes that should be UTF-8; what we write is UTF-8."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else None
