import sys

import pytest

from penstock.cli.progress import counting, download_bar


def test_phases_may_be_told_to_somebody_instead(capsys: pytest.CaptureFixture[str]) -> None:
    """Where every line of the log is an object, a bare one would be none."""
    told: list[str] = []
    with download_bar(told.append) as report:
        for done in (0, 50, 100):
            report("tiny", done, 100)
        report("tiny: checking", 100, 100)
    assert told == ["tiny", "tiny: checking"]
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_a_phase_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with download_bar() as report:
        report("tiny", 0, 100)
        report("tiny", 100, 100)
    assert capsys.readouterr().err == "tiny\n"


def test_a_count_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> str:
        with counting() as report:
            for done in (1, 2):
                report("calibrating", done, 2)
            report("writing", 1, 3)
        return capsys.readouterr().err

    assert count() == "calibrating 2/2\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert [line.rpartition("\x1b[K")[2] for line in count().split("\n")] == ["calibrating 2/2", "writing 1/3", ""]
