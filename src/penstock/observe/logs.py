"""Log formats: human-readable lines, or one JSON object per line."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import msgspec

HUMAN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS = ("request_id", "method", "path", "status", "ms", "trace_id")  # optional, beside the message


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
    """Log to stderr in this format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else logging.Formatter(HUMAN))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # we log start and shutdown ourselves
    logging.getLogger("alembic").setLevel(logging.WARNING)
