import json
import logging

from penstock.observe.logs import JsonFormatter


def test_a_line_is_one_object_with_the_request_in_it() -> None:
    record = logging.LogRecord("penstock.access", logging.INFO, "", 0, "%s\nnot a line of %s", ("GET", "its own"), None)
    record.request_id = "req-1"
    record.status = None
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == "GET\nnot a line of its own"
    assert (told["level"], told["logger"], told["request_id"]) == ("info", "penstock.access", "req-1")
    assert "status" not in told


def test_an_error_brings_its_trace() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "broke", (), (type(error), error, error.__traceback__))
    assert "ValueError: no" in json.loads(JsonFormatter().format(record))["exception"]
