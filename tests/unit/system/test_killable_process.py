"""Helper processes: what they are given, and what becomes of those that do not start. Hangs and crashes are tried in
`grammar/test_checker.py` and `prompt/test_worker.py`, with processes that there are."""

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.system.killable_process import HelperProcess

CHILD = """
import os
from penstock.system.killable_process import answer_questions

def prepare(greeting):
    if greeting == b"no":
        return b"cannot"
    return lambda question: greeting + b" " + question + b" " + os.environ.get("PENSTOCK_API_KEY", "no key").encode()

answer_questions(prepare)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "child_of_test.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("PENSTOCK_API_KEY", "secret")
    return "child_of_test"


def test_questions_are_answered_in_turn_by_one_process_without_secrets(module: str) -> None:
    with closing(HelperProcess(module, b"hi", cpu_limit_s=60, memory_bytes=1 << 28)) as helper:
        assert [helper.ask(b"1"), helper.ask(b"2")] == [b"hi 1 no key", b"hi 2 no key"]


def test_a_process_that_dies_while_nobody_asks_leaves_nothing_behind(module: str) -> None:
    with closing(HelperProcess(module, b"hi", cpu_limit_s=60, memory_bytes=1 << 28)) as helper:
        helper.ask(b"1")
        child = helper._child
        assert child is not None
        os.kill(child._process.pid, signal.SIGKILL)
        child._reader.join()
        assert child._process.returncode == -signal.SIGKILL  # somebody has waited for it: it is no zombie
        assert helper.ask(b"2") == b"hi 2 no key"


def test_a_process_that_cannot_answer_says_why(module: str) -> None:
    with closing(HelperProcess(module, b"no", cpu_limit_s=60, memory_bytes=1 << 28)) as helper:
        assert helper.ask(b"1") == b"cannot"


def test_a_process_that_does_not_start_is_an_error(module: str) -> None:
    helper = HelperProcess("no.such.module", b"", cpu_limit_s=60, memory_bytes=1 << 28)
    with pytest.raises(PenstockError, match="did not start"):
        helper.ask(b"1")
