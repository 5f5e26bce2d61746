import io
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.answer_display import CONTROLS, MarkdownDisplay, PlainDisplay, Stopwatch, finished_blocks
from penstock.cli.chat import Chat, Open
from penstock.cli.session import TalkingModel
from penstock.errors import ContextOverflow, ModelNotFound
from penstock.flow import Chunk, Message, SamplingParams


class Echo:
    """Says what it was asked, word by word."""

    can_chat = True
    recommended: dict[str, Any] = {"temperature": 0.2}  # noqa: RUF012
    max_tokens = 512
    output_tokens = 0

    def __init__(self, interrupt_after: int = -1, now: bool = False) -> None:
        self.name = "echo"
        self.interrupts: Any = "now" if now else "between chunks"
        self.interrupt_after = interrupt_after
        self.asked: list[list[Message]] = []
        self.params: list[SamplingParams] = []
        self.closed = 0

    def stream(self, prompt: str | list[Message], params: SamplingParams) -> Iterator[Chunk]:
        assert isinstance(prompt, list)
        self.asked.append(prompt)
        self.params.append(params)
        if prompt[-1]["content"] == "too long":
            raise ContextOverflow("too long")
        try:
            for place, word in enumerate(prompt[-1]["content"].split()):
                if place == self.interrupt_after:
                    signal.raise_signal(signal.SIGINT)
                yield Chunk(0, word + " ", [place])
        finally:
            self.closed += 1

    def complete(self, prompt: Any, params: SamplingParams) -> tuple[list[str], dict[str, Any]]:
        raise NotImplementedError


def opener(*models: Echo) -> Open:
    by_name = {model.name: model for model in models}

    @contextmanager
    def open_by_name(name: str | None) -> Iterator[TalkingModel]:
        if name is not None and name not in by_name:
            raise ModelNotFound(f"no model {name}")
        yield models[0] if name is None else by_name[name]

    return open_by_name


def params_of(defaults: dict[str, Any], changed: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{**defaults, **changed})


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def talk(monkeypatch: pytest.MonkeyPatch, llm: Echo, *lines: str, others: tuple[Echo, ...] = ()) -> Chat:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
    with ExitStack() as stack:
        chat = Chat(opener(llm, *others), stack, params_of)
        chat.loop()
    return chat


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


@pytest.mark.parametrize("now", [False, True])
def test_ctrl_c_stops_the_answer_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], now: bool
) -> None:
    llm = Echo(interrupt_after=1, now=now)
    before = signal.getsignal(signal.SIGINT)
    talk(monkeypatch, llm, "one two three", "next")
    assert signal.getsignal(signal.SIGINT) is before
    out = capsys.readouterr().out
    assert ("two" in out) == (not now)
    assert "three" not in out
    assert "[stopped]" in out
    assert llm.asked[1][1] == {"role": "assistant", "content": "one " if now else "one two "}
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


def test_messages_of_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = Echo()
    talk(monkeypatch, llm, '"""first', "", 'last"""', "with \\", "a tail", '"""one line"""', '"""', "open end")
    assert [asked[-1]["content"] for asked in llm.asked] == [
        "first\n\nlast",
        "with \na tail",
        "one line",
        "open end",
    ]


def test_set_changes_the_parameters_of_later_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = Echo()
    lines = ("/set temperature 0.9", "/set stop \\n", "/set max_tokens none", "a", "/set temperature default", "b")
    talk(monkeypatch, llm, *lines, "/set", "/set seed", "/set top_p 7", "/set colour red", "/set top_k x", "c")
    assert [params.temperature for params in llm.params] == [0.9, 0.2, 0.2]
    assert [params.stop for params in llm.params] == [("\n",)] * 3
    assert [params.max_tokens for params in llm.params] == [512] * 3  # "none" is refused
    assert [params.top_p for params in llm.params] == [1.0] * 3
    err = capsys.readouterr().err
    for said in (
        "max_tokens: 'none' is not",
        "('\\n',)  (set here)",
        "top_p must be in",
        "colour is",
    ):
        assert said in err


def test_a_conversation_is_saved_and_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_home: Path
) -> None:
    llm, bad = Echo(), data_home / "bad.json"
    bad.write_text('{"messages": [{"content": 1}]}')
    talk(monkeypatch, llm, "/system brief", "/set seed 4", "one", "/save first", f"/save {data_home}/x.json", "/save")
    saved = json.loads((data_home / "penstock" / "chats" / "first.json").read_text())
    assert saved == json.loads((data_home / "x.json").read_text())
    assert (data_home / "x.json").stat().st_mode & 0o077 == 0
    again = Echo()
    talk(monkeypatch, again, "/load", "/load nonesuch", f"/load {bad}", "/load first", "two")
    assert [turn["content"] for turn in again.asked[0]] == ["brief", "one", "one ", "two"]
    assert again.params[0].seed == 4
    err = capsys.readouterr().err
    for said in ("needs a name", "first", "cannot load", "not a saved conversation", "loaded 2 messages"):
        assert said in err


def test_another_model_goes_on_with_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, mute = Echo(), Echo(), Echo()
    second.name, second.recommended = "other", {"temperature": 0.5}
    mute.name, mute.can_chat = "mute", False
    talk(monkeypatch, first, "one", "/model gone", "/model mute", "two", "/model other", "three", others=(second, mute))
    assert len(first.asked) == 2
    assert [turn["content"] for turn in second.asked[0]] == ["one", "one ", "two", "two ", "three"]
    assert second.params[0].temperature == 0.5
    err = capsys.readouterr().err
    assert "no model gone" in err
    assert "has no chat template" in err


def test_thoughts_are_shown_but_are_no_part_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    show = PlainDisplay()
    for chunk in (Chunk(0, "", [1], reasoning="hm"), Chunk(0, "", [2], reasoning=" so"), Chunk(0, "Yes.", [3])):
        show(chunk)
    shown = capsys.readouterr()
    assert shown.out == "Yes."
    assert shown.err == "hm so\n\n"


@pytest.mark.parametrize(
    ("text", "done", "rest"),
    [
        ("one\n\ntwo", "one", "two"),
        ("one\n", "", "one\n"),
        ("```py\na\n\nb", "", "```py\na\n\nb"),
        ("```py\na\n\nb\n```\n\nc", "```py\na\n\nb\n```", "c"),
        ("- a\n\n- b\n\n", "", "- a\n\n- b\n\n"),
        ("1. a\n\n2. b\n\nText", "1. a\n\n2. b", "Text"),
    ],
)
def test_finished_blocks_of_markdown(text: str, done: str, rest: str) -> None:
    assert finished_blocks(text) == (done, rest)


def test_a_terminal_gets_markdown_and_no_control_characters() -> None:
    from rich.console import Console

    screen = io.StringIO()
    hostile = "\x1b[2J\x1b]0;title\x07\x9b31m"
    with MarkdownDisplay(Console(file=screen, force_terminal=True, width=60, color_system=None)) as show:
        for piece in (f"# Head{hostile}\n\n", "Some **bold**", " text\n\n```python\nx", " = 1\n```\n"):
            show(Chunk(0, piece, [1]))
    shown = screen.getvalue()
    assert "Head" in shown
    assert "bold" in shown
    assert "**" not in shown.rpartition("Some")[2]
    for sign in ("\x1b[2J", "\x07", "\x9b", "title"):
        assert sign not in shown
    assert CONTROLS.sub("", "a\tb\nc\r\x1b[31md") == "a\tb\ncd"


def test_tokens_per_second() -> None:
    watch = Stopwatch()
    assert watch.line() == ""
    for _ in range(3):
        watch.count(Chunk(0, "x", [1]))
    assert watch.line().startswith("3 tokens, ")
    assert "tok/s, first after" in watch.line()
