"""Entry point of an engine process: `python -m penstock.worker ADDRESS`. Started by engine.process, not by people."""

from __future__ import annotations

import signal
import sys

from penstock import assemble
from penstock.engine.link import engine_link
from penstock.engine.serve import serve


def main() -> int:
    # Ctrl-C in a terminal reaches the whole process group; the frontend decides what it means and tells us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return serve(engine_link(sys.argv[1], lifeline=sys.stdin.fileno()), assemble.engine_loop)


if __name__ == "__main__":
    sys.exit(main())
