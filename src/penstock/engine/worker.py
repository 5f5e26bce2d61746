"""Entry point of an engine process, which `engine.process` starts: `python -m penstock.engine.worker ADDRESS`."""

from __future__ import annotations

import signal
import sys
from typing import Any

from penstock import assemble
from penstock.engine.ipc import PeerGone, open_engine_link
from penstock.engine.loop import EngineLoop
from penstock.engine.orphan_watch import end_orphan, watch_frontend
from penstock.engine.serve import Report, serve
from penstock.observe.logs import configure
from penstock.settings import Settings
from penstock.system.heap import trim_heap
from penstock.system.ownership import claim_process


def main() -> int:
    claim_process()
    # Ctrl-C in a terminal and a service manager's SIGTERM reach all processes of the group. The frontend handles them
    # and sends Stop; when the frontend ends, so does this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    lifeline = sys.stdin.fileno()
    watch_frontend(lifeline)
    try:
        return serve(open_engine_link(sys.argv[1], lifeline), build)
    except PeerGone:
        end_orphan()
        raise


def build(settings: Settings, secret: bytes, report: Report) -> tuple[EngineLoop, dict[str, Any]]:
    configure(settings.observe.log_format)
    built = assemble.engine_loop(settings, secret, report)
    trim_heap()
    return built


if __name__ == "__main__":
    sys.exit(main())
