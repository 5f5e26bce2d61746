import logging

import pytest

from penstock.flow import SamplingParams, Submit
from penstock.http.response_warnings import HEADER, MAX_HEADER, MAX_LOGGED, MAX_WARNING, WarningLog, warning_header
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream, NoText


def active(*warnings: str) -> ActiveRequest:
    submits: list[Submit] = []
    return ActiveRequest("f", submits, lambda choice: ChoiceStream(choice, SamplingParams(), NoText()), warnings)


def test_no_warnings_no_header() -> None:
    assert warning_header([active(), active()]) == {}


def test_each_warning_is_told_once_in_the_order_of_the_prompts() -> None:
    assert warning_header([active("b", "a"), active("a", "c")]) == {HEADER: "b; a; c"}


@pytest.mark.parametrize(
    ("warning", "told"),
    [
        ("tool 'wetter-für'", "tool 'wetter-f\\xfcr'"),
        ("a\r\nset-cookie: x", "a set-cookie: x"),
        ("a\x00\x7fb", "a??b"),
        ("x" * 9999, "x" * (MAX_WARNING - 3) + "..."),
    ],
)
def test_what_clients_name_is_safe_in_a_header(warning: str, told: str) -> None:
    assert warning_header([active(warning)]) == {HEADER: told}


def test_a_header_is_bounded() -> None:
    told = warning_header([active(*(f"{number} {'x' * 90}" for number in range(99)))])[HEADER]
    assert len(told) == MAX_HEADER
    assert told.startswith("0 xxx")
    assert told.endswith("...")


def test_each_distinct_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log = WarningLog()
    log.log([active("a", "b"), active("a")])
    log.log([active("b")])
    assert [record.getMessage() for record in caplog.records] == [
        "accepted without effect: a",
        "accepted without effect: b",
    ]


def test_clients_cannot_fill_the_log_with_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log = WarningLog()
    log.log([active(*map(str, range(MAX_LOGGED + 50)))])
    log.log([active("another")])
    assert len(caplog.records) == MAX_LOGGED + 1
    assert "no more are logged" in caplog.records[-1].getMessage()
