"""Entry point of an engine process: `python -m penstock.engine.worker ADDRESS [HOST]`.

`engine.process` starts it on the frontend's host, `cluster.engine_actor` on a node of a cluster, whose address is HOST.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from typing import Any

from msgspec.structs import replace

from penstock import composition
from penstock.engine.ipc import IpcLink, PeerGone, open_engine_link
from penstock.engine.loop import EngineLoop
from penstock.engine.serve import Report, serve
from penstock.flow.messages import StartPhase, ToEngine
from penstock.flow.transfer import TransferSetup
from penstock.observe.logs import configure
from penstock.settings import Settings
from penstock.system.heap import trim_heap
from penstock.system.orphan_watch import end_orphan, watch_parent
from penstock.system.ownership import claim_process


def main() -> int:
    claim_process()
    # Ctrl-C in a terminal and a service manager's SIGTERM reach all processes of the group. The frontend handles them
    # and sends Stop; when the frontend ends, so does this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    lifeline = sys.stdin.fileno()
    address, *host = sys.argv[1:]
    link = open_engine_link(address, lifeline) if address.startswith("ipc://") else _connect(address, lifeline)
    watch_parent(lifeline)
    try:
        return serve(link, partial(build, host=host[0] if host else None))
    except PeerGone:
        end_orphan()
        raise


def _connect(address: str, lifeline: int) -> IpcLink[ToEngine]:
    """To the frontend on another host, with the keys that come before anything else; it answers the first message with
    the settings."""
    from penstock.cluster.tcp_link import EngineKeys, connect_engine_link

    link = connect_engine_link(address, EngineKeys.read(lifeline), lifeline)
    link.send(StartPhase("starting the engine"))
    return link


def build(
    settings: Settings, secret: bytes, report: Report, transfer: TransferSetup | None, *, host: str | None
) -> tuple[EngineLoop, dict[str, Any]]:
    """`host`: where other engines reach this one, if they may be on other hosts."""
    if transfer is not None and host is not None:
        transfer = replace(transfer, host=host)
    configure(settings.observe.log_format)
    built = composition.engine_loop(settings, secret, report, transfer)
    trim_heap()
    return built


if __name__ == "__main__":
    sys.exit(main())
