"""Runs a `stream.output_parser.OutputParser` over pieces of text and collects its parts."""

from __future__ import annotations

import itertools
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
