"""Jinja's internals: the fast path where it is there, and the warning and the slow path where it is not."""

from __future__ import annotations

from collections.abc import Iterator

import jinja2.filters
import pytest

from penstock.prompt import jinja_internals
from penstock.prompt.sandbox import PASSING, Sandbox, render_metered
from penstock.system.slow_paths import warn_slow_path

# One filter for each thing that may stand in front of a value, and some that stand for an asynchronous one, too.
SOURCE = (
    "{{ xs | join('-') }} {{ xs | map('upper') | list }} {{ xs | first }} {{ 'a' | upper }} {{ xs | select('eq', 'b') |"
    " list }} {{ 'filter' is filter }}{{ 'upper' is filter }} {{ {'k': 'é'} | tojson }} {{ xs | last | default('z') }}"
)
SHOWN = "a-b ['A', 'B'] a A ['b'] FalseTrue {\"k\": \"é\"} b"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    jinja_internals._knows_front.cache_clear()
    warn_slow_path.cache_clear()
    yield
    jinja_internals._knows_front.cache_clear()


def shown() -> str:
    return render_metered(Sandbox().from_string(SOURCE), {"xs": ["a", "b"]}, 10_000)


def test_filters_are_called_as_jinja_does(caplog: pytest.LogCaptureFixture) -> None:
    assert shown() == SHOWN
    assert caplog.text == ""


@pytest.mark.parametrize("missing", ["attribute", "name", "filter"])
def test_where_filters_are_not_marked_jinja_calls_them(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if missing == "attribute":
        monkeypatch.setattr(jinja_internals, "_front", lambda function: None)
    elif missing == "name":
        monkeypatch.setattr(jinja_internals, "_front", lambda function: function.no_such_name)
    else:
        monkeypatch.setattr(jinja_internals, "KNOWN", {"no such filter": None})
    assert shown() == SHOWN
    assert shown() == SHOWN
    assert caplog.text.count("chat templates are rendered more slowly") == 1


def test_the_types_of_what_templates_call() -> None:
    types = jinja_internals.object_types()
    assert len(set(types)) == 4
    assert types.macro in PASSING
    assert types.cycler is jinja2.utils.Cycler
