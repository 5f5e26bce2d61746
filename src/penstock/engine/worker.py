"""Entry point of an engine process: `python -m penstock.engine.worker ADDRESS`. Started by engine.process, not by
people."""

from __future__ import annotations

import signal
import sys
from typing import Any

from penstock import assemble
from penstock.engine.link import engine_link
from penstock.engine.loop import EngineLoop
from penstock.engine.serve import serve
from penstock.observe.logs import configure
from penstock.settings import Settings
from penstock.system.ownership import claim_process


def main() -> int:
    claim_process()
    # Ctrl-C in a terminal and a service manager's SIGTERM reach the whole group of processes; the frontend decides what
    # they mean and tells us, and its end is ours.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return serve(engine_link(sys.argv[1], lifeline=sys.stdin.fileno()), build)


def build(settings: Settings, secret: bytes) -> tuple[EngineLoop, dict[str, Any]]:
    configure(settings.observe.log_format)
    return assemble.engine_loop(settings, secret)


if __name__ == "__main__":
    sys.exit(main())
