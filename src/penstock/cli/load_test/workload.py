"""The requests of a load test: their lengths, texts and times. Of a trace, or synthetic."""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidRequest
from penstock.system import typed

AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
MOONCAKE_BLOCK = 512  # tokens that one of `hash_ids` stands for
# Words that nearly every tokenizer has as one token with its space
TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body"
)
WORDS = TEXT.split()


class Planned(NamedTuple):
    at_s: float  # after the start
    prompt: str
    input_tokens: int  # as planned; the server counts them itself
    output_tokens: int


class TraceRow(NamedTuple):
    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # equal ids are equal text, in Mooncake's traces


def read_trace(path: Path) -> list[TraceRow]:
    """Azure's LLM inference traces (CSV) or Mooncake's (JSON lines), plain or gzipped, by what is in them."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InvalidRequest(f"cannot read the trace {path}: {error}", param="trace") from None
    rows = list(_azure(path, text) if text.startswith(AZURE_HEADER[0]) else _mooncake(path, text))
    if not rows:
        raise InvalidRequest(f"the trace {path} has no requests", param="trace")
    first = min(row.at_s for row in rows)
    return sorted((row._replace(at_s=row.at_s - first) for row in rows), key=lambda row: row.at_s)


def _azure(path: Path, text: str) -> Iterator[TraceRow]:
    reader = csv.DictReader(io.StringIO(text))
    if not set(AZURE_HEADER) <= set(reader.fieldnames or ()):
        raise InvalidRequest(f"{path}: a CSV trace has the columns {', '.join(AZURE_HEADER)}", param="trace")
    for number, row in enumerate(reader, 2):
        try:
            when = datetime.fromisoformat(row["TIMESTAMP"][:26])
            yield TraceRow(when.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except (ValueError, TypeError):
            raise InvalidRequest(f"{path}, line {number} is not a request of a trace", param="trace") from None


class _MooncakeRow(msgspec.Struct):
    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def _mooncake(path: Path, text: str) -> Iterator[TraceRow]:
    decode = typed.json_decoder(_MooncakeRow).decode
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = decode(line)
            except msgspec.DecodeError as error:
                raise InvalidRequest(f"{path}, line {number}: {error}", param="trace") from None
            yield TraceRow(row.timestamp / 1000, row.input_length, row.output_length, tuple(row.hash_ids))


def words(count: int, seed: str) -> str:
    """About `count` tokens; the same for the same seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=max(1, count)))  # noqa: S311


def _prompt_of(row: TraceRow, number: int, seed: int) -> str:
    """Prompts share their beginnings as the trace says; without `blocks`, no two have the same."""
    if not row.blocks:
        return words(row.input_tokens, f"{seed}/{number}")
    parts, left = [], row.input_tokens
    for block in row.blocks:
        parts.append(words(min(left, MOONCAKE_BLOCK), f"{seed}/block{block}"))
        left -= MOONCAKE_BLOCK
        if left <= 0:
            break
    return " ".join(parts)


def from_trace(
    rows: list[TraceRow], *, limit: int | None, speed: float, longest: int | None, seed: int
) -> list[Planned]:
    """`speed`: 2 sends twice as fast. `longest`: tokens of prompt and output that the server takes; longer requests of
    the trace are cut to it, prompt first."""
    planned = []
    for number, row in enumerate(rows[:limit]):
        output = max(1, row.output_tokens)
        asked = max(1, row.input_tokens)
        if longest is not None:
            output = min(output, max(1, longest // 2))
            asked = min(asked, max(1, longest - output))
        prompt = _prompt_of(row._replace(input_tokens=asked), number, seed)
        planned.append(Planned(row.at_s / speed, prompt, asked, output))
    return planned


def synthetic(count: int, *, lengths: str, outputs: str, rate: float | None, shared: int, seed: int) -> list[Planned]:
    """`lengths` and `outputs` are a number of tokens or a range, 128:1024, drawn uniformly. With `rate`, arrivals are a
    Poisson process; else all may start at once. The first `shared` tokens of all prompts are the same."""
    draw = random.Random(seed)  # noqa: S311
    low, high = parse_range(lengths, "input_tokens")
    least, most = parse_range(outputs, "output_tokens")
    prefix = words(shared, f"{seed}/shared") + " " if shared else ""
    planned, at_s = [], 0.0
    for number in range(count):
        length = draw.randint(low, high)
        own = words(max(1, length - shared), f"{seed}/{number}")
        planned.append(Planned(at_s, prefix + own, length, draw.randint(least, most)))
        if rate:
            at_s += draw.expovariate(rate)
    return planned


def parse_range(given: str, name: str) -> tuple[int, int]:
    low, _, high = given.partition(":")
    try:
        found = int(low), int(high or low)
    except ValueError:
        found = (0, 0)
    if not 1 <= found[0] <= found[1]:
        raise InvalidRequest(
            f"{name} must be a number of tokens or a range such as 128:1024, got {given!r}", param=name
        )
    return found
