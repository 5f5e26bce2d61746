"""json's internals: decoding in pieces where this Python has them, and the warning and the plain decoder where not."""

from __future__ import annotations

import json
from json import decoder, scanner

import pytest

from penstock.http.parse import json_body, json_internals
from penstock.system.slow_paths import warn_slow_path


@pytest.fixture(autouse=True)
def _fresh() -> None:
    warn_slow_path.cache_clear()


def rebuilt() -> json.JSONDecoder:
    return json_internals.checked(json_body._Piecewise, json_body._DECODER)


def test_this_python_decodes_in_pieces(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(json_body._PIECEWISE, json_body._Piecewise)
    assert isinstance(rebuilt(), json_body._Piecewise)
    assert caplog.text == ""


@pytest.mark.parametrize("missing", ["JSONObject", "py_make_scanner", "scan_array", "another result"])
def test_another_python_decodes_in_one_go(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if missing == "JSONObject":
        monkeypatch.delattr(decoder, missing)
    elif missing == "py_make_scanner":
        monkeypatch.delattr(scanner, missing)
    elif missing == "scan_array":
        monkeypatch.setattr(json_body, "scan_array", None)
    else:
        monkeypatch.setattr(json_body, "scan_array", lambda begin, *_: ([], len(begin[0]) - 1))
    found = rebuilt()
    assert found is json_body._DECODER
    assert rebuilt() is found
    assert caplog.text.count("this version of Python has no json decoder as Penstock knows it") == 1
    monkeypatch.setattr(json_body, "_PIECEWISE", found)
    monkeypatch.setattr(json_body, "SHORT_BODY", 0)
    assert json_body.decode_object(b'{"a": [1, "b"]}') == {"a": [1, "b"]}
