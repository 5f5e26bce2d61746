"""How log lines are written: for people, or as one JSON object each."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import msgspec

HUMAN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS = ("request_id", "method", "path", "status", "ms", "trace_id")  # that a line may carry beside its message


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(kind: Literal["human", "json"]) -> None:
    """All lines, to the standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else logging.Formatter(HUMAN))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what it would say of its start and end, we say ourselves
