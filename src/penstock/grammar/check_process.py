"""Compiles the constraints that clients send, in a helper process that `checker` starts and may kill."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.errors import PenstockError
from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler
from penstock.system import typed
from penstock.system.killable_process import Answer, answer_questions


class Vocabulary(msgspec.Struct):
    """The first message to the process."""

    tokenizer: str
    size: int
    end_tokens: tuple[int, ...]


class Verdict(msgspec.Struct):
    error: str | None = None
    code: str | None = None  # of the error class
    param: str | None = None


def prepare(greeting: bytes) -> Answer | bytes:
    vocabulary = typed.decode_json(greeting, Vocabulary)
    compiler = Compiler(Path(vocabulary.tokenizer), vocabulary.size, vocabulary.end_tokens)
    loaded = _try(compiler, None)
    if loaded.error is not None:
        return msgspec.json.encode(loaded)
    return lambda line: msgspec.json.encode(_try(compiler, typed.decode_json(line, Constraint)))


def _try(compiler: Compiler, constraint: Constraint | None) -> Verdict:
    """Compile a constraint; None: load the vocabulary."""
    try:
        if constraint is None:
            compiler.vocabulary()
        else:
            compiler.check(constraint)
    except PenstockError as error:
        return Verdict(error.message, error.code, error.param)
    return Verdict()


if __name__ == "__main__":
    answer_questions(prepare)
