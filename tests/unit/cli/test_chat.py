import io
import signal
from collections.abc import Iterator

import pytest

from penstock.cli.chat import Chat
from penstock.cli.session import Shower
from penstock.errors import ContextOverflow
from penstock.flow import Chunk, Message, SamplingParams
from penstock.pipeline import Pipeline


class Echo:
    """Stands in for an LLM: says what it was asked, word by word."""

    pipeline: Pipeline

    def __init__(self, interrupt_after: int = -1) -> None:
        self.interrupt_after = interrupt_after
        self.asked: list[list[Message]] = []
        self.closed = 0

    def stream(self, messages: list[Message], params: SamplingParams) -> Iterator[Chunk]:
        self.asked.append(messages)
        if messages[-1]["content"] == "too long":
            raise ContextOverflow("too long")
        try:
            for place, word in enumerate(messages[-1]["content"].split()):
                if place == self.interrupt_after:
                    signal.raise_signal(signal.SIGINT)
                yield Chunk(0, word + " ", [place])
        finally:
            self.closed += 1


def talk(monkeypatch: pytest.MonkeyPatch, llm: Echo, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
    Chat(llm, SamplingParams(), None).loop()  # type: ignore[arg-type]


def test_history_grows_and_reset_forgets_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = Echo()
    talk(monkeypatch, llm, "one two", "/system be brief", "three", "/reset", "four", "/exit", "never")
    system = {"role": "system", "content": "be brief"}
    assert llm.asked == [
        [{"role": "user", "content": "one two"}],
        [
            system,
            {"role": "user", "content": "one two"},
            {"role": "assistant", "content": "one two "},
            {"role": "user", "content": "three"},
        ],
        [system, {"role": "user", "content": "four"}],
    ]
    assert "one two" in capsys.readouterr().out


def test_ctrl_c_stops_the_answer_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = Echo(interrupt_after=1)
    before = signal.getsignal(signal.SIGINT)
    talk(monkeypatch, llm, "one two three", "next")
    assert signal.getsignal(signal.SIGINT) is before
    out = capsys.readouterr().out
    assert "two" in out
    assert "three" not in out
    assert "[stopped]" in out
    assert llm.asked[1][1] == {"role": "assistant", "content": "one two "}
    assert llm.closed == 2


def test_a_full_context_is_told_and_left_out_of_the_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = Echo()
    talk(monkeypatch, llm, "too long", "hi")
    assert "/reset" in capsys.readouterr().err
    assert llm.asked[1] == [{"role": "user", "content": "hi"}]


def test_an_unknown_command_shows_the_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = Echo()
    talk(monkeypatch, llm, "/rest", "", "  ")
    assert llm.asked == []
    assert "/reset" in capsys.readouterr().err


def test_thoughts_are_shown_but_are_no_part_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    show = Shower()
    for chunk in (Chunk(0, "", [1], reasoning="hm"), Chunk(0, "", [2], reasoning=" so"), Chunk(0, "Yes.", [3])):
        show(chunk)
    shown = capsys.readouterr()
    assert shown.out == "Yes."
    assert shown.err == "hm so\n\n"
