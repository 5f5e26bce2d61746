"""Runs a `stream.output_parser.OutputParser` over pieces of text and collects its parts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from penstock.flow import CallDelta, OutputFormat
from penstock.stream.output_parser import OutputParser

SplitParts = tuple[str, str, list[tuple[str, str]]]  # reasoning, text, calls with their names and arguments


def split_stream(pieces: Iterable[str], output_format: OutputFormat) -> SplitParts:
    numbers = itertools.count()
    parser = OutputParser(output_format, make_id=lambda: f"call_{next(numbers)}")
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
    text = {"reasoning": "", "text": ""}
    calls: list[tuple[str, str]] = []
    for part in parts:
        if not isinstance(part, CallDelta):
            kind, piece = part
            assert piece, "empty part"
            text[kind] += piece
        elif part.id is not None:
            assert (part.id, part.index, part.arguments) == (f"call_{len(calls)}", len(calls), "")
            assert part.name is not None
            calls.append((part.name, ""))
        else:
            assert part.index == len(calls) - 1
            assert part.arguments
            calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    return text["reasoning"], text["text"], calls


def split_in_every_way(text: str, output_format: OutputFormat) -> SplitParts:
    """Splits the whole text, and asserts that the parts are the same letter by letter, in any two pieces, and in random
    pieces."""
    whole = split_stream([text], output_format)
    assert split_stream(text, output_format) == whole
    step = max(1, len(text) // 150)
    for place in range(0, len(text), step):
        assert split_stream([text[:place], text[place:]], output_format) == whole
    rng = random.Random(len(text))
    for _ in range(5):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(1, 12)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert split_stream(pieces, output_format) == whole
    return whole
