"""The process that tries constraints out: verdicts, and what becomes of those that hang or crash it."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import tiny_models
from penstock.errors import InvalidRequest, QueueFull, ShuttingDown
from penstock.flow import Constraint
from penstock.grammar import checker as module
from penstock.grammar.checker import Checker
from penstock.grammar.constraint_grammar import MAX_SOURCE_BYTES

HANGS = Constraint.json_schema({"type": "integer", "multipleOf": 123_456_789})
CRASHES = Constraint.grammar("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(20_000)) + '\nr20000: "a"')
FINE = Constraint.choice(["a", "b"])


@pytest.fixture(scope="module")
def checker(tokenizer_file: Path) -> Iterator[Checker]:
    made = Checker(tokenizer_file, tiny_models.VOCAB, (tiny_models.END_TOKEN,), limit_s=1.0, quick_limit_s=0.3)
    yield made
    made.close()


def refused(checker: Checker, constraint: Constraint) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        checker.check(constraint)
    return caught.value


def test_verdicts(checker: Checker) -> None:
    checker.check(FINE)
    error = refused(checker, Constraint.json_schema({"not": {}}))
    assert "not supported" in error.message
    assert error.param == "constraint.json_schema"
    checker.check(Constraint.grammar('start: "ä\\n" /[^x]/'))


def test_what_hangs_is_refused_and_so_is_what_crashes_and_others_are_served(checker: Checker) -> None:
    assert "more than 1 s" in refused(checker, HANGS).message
    assert "too large or too deep" in refused(checker, CRASHES).message
    checker.check(Constraint.choice(["c", "d"]))


def test_a_process_that_was_killed_is_no_verdict(checker: Checker) -> None:
    """By whoever is short of memory, say: before the next question comes, or while it is being answered."""
    checker.check(FINE)
    child = checker._quick._child
    assert child is not None
    child.kill()
    child._process.wait()
    checker.check(Constraint.regex("[a-c]{3,9}81070"))
    child = checker._quick._child
    assert child is not None
    child.ask = lambda question: child.kill()  # type: ignore[method-assign]
    checker.check(Constraint.regex("[a-c]{3,9}81071"))
    child = checker._quick._child
    assert child is not None
    child.kill()
    assert "too large or too deep" in refused(checker, CRASHES).message  # the new one has died of it


def test_a_slow_constraint_delays_no_other(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SLOW", 1)
    checker = Checker(tokenizer_file, tiny_models.VOCAB, (tiny_models.END_TOKEN,), limit_s=1000.0, quick_limit_s=0.1)
    slow = threading.Event()
    ask = checker._slow.ask
    monkeypatch.setattr(checker._slow, "ask", lambda question: slow.set() or ask(question))
    ended: list[type[Exception]] = []

    def wait() -> None:
        try:
            checker.check(HANGS)
        except Exception as error:
            ended.append(type(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert slow.wait(timeout=60)
    checker.check(FINE)
    with pytest.raises(QueueFull):
        checker.check(Constraint.json_schema({"type": "integer", "multipleOf": 123_456_789, "title": "other"}))
    checker.close()
    waiting.join(timeout=60)
    assert ended == [ShuttingDown]


def test_a_constraint_that_gets_too_complex_with_its_first_tokens_is_rejected(checker: Checker) -> None:
    for constraint in (Constraint.regex("x(a|aa){1000}"), Constraint.grammar("start: /(a|aa){1000}/")):
        error = refused(checker, constraint)
        assert "too complex" in error.message
        assert error.param == f"constraint.{constraint.kind}"


def test_a_verdict_is_remembered(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    checker.check(FINE)
    refused(checker, HANGS)
    monkeypatch.setattr(checker, "_ask", None)
    checker.check(FINE)
    assert "more than 1 s" in refused(checker, HANGS).message


def test_only_so_many_are_remembered(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 3)
    for number in range(8):
        checker.check(Constraint.choice([f"n{number}"]))
    assert len(checker._verdicts) == 3


def test_long_sources_are_refused_at_once_and_none_is_kept(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"description": "x" * 1000}
    checker.check(Constraint.json_schema(schema))
    assert all(len(key) <= 64 for key in checker._verdicts)
    monkeypatch.setattr(checker, "_ask", None)
    checker._verdicts.clear()
    error = refused(checker, Constraint.json_schema({"description": "x" * MAX_SOURCE_BYTES}))
    assert "longer than" in error.message
    assert not checker._verdicts


def test_closing_waits_for_nobody(tokenizer_file: Path) -> None:
    """Also while something hangs there; no process is left."""
    checker = Checker(tokenizer_file, tiny_models.VOCAB, (tiny_models.END_TOKEN,), limit_s=1000.0, quick_limit_s=1000.0)
    checker.check(FINE)
    assert checker._quick._child is not None
    process: subprocess.Popen[bytes] = checker._quick._child._process
    told: list[Exception] = []

    def wait() -> None:
        try:
            checker.check(HANGS)
        except Exception as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    checker.close()
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    assert [type(error) for error in told] == [ShuttingDown]  # nothing is wrong with what it asked for
    assert process.poll() is not None
    checker.check(FINE)  # it is known
    with pytest.raises(ShuttingDown):
        checker.check(Constraint.choice(["new"]))


def test_without_a_vocabulary_nothing_is_started(tmp_path: Path) -> None:
    assert "no tokenizer" in refused(Checker(None, 300, ()), FINE).message
    nothing = Checker(tmp_path / "nothing.json", 300, ())
    with pytest.raises(Exception, match="cannot be constrained"):
        nothing.check(FINE)
    nothing.close()
