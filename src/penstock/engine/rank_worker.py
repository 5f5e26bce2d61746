"""Entry point of a rank other than 0, which `engine.rank_group` starts: `python -m penstock.engine.rank_worker
ADDRESS`. It computes what rank 0 asks for until rank 0 is gone."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys

from penstock import composition
from penstock.engine.ipc import IpcLink, PeerGone, open_rank_link
from penstock.errors import PenstockError
from penstock.flow import Failure
from penstock.flow.ranks import RankAdapter, RankJoin, RankLoaded, RankStart, RankWork, ToRank
from penstock.observe.logs import configure
from penstock.settings import from_wire
from penstock.system.orphan_watch import die_with_parent, watch_parent
from penstock.system.ownership import claim_process

logger = logging.getLogger(__name__)


GONE_S = 1.0  # sums fail first when rank 0 has ended; its lifeline follows within this time


def main() -> int:
    claim_process()
    for number in (signal.SIGINT, signal.SIGTERM):  # as of an engine process: rank 0 ends it
        signal.signal(number, signal.SIG_IGN)
    lifeline = sys.stdin.fileno()
    watch_parent(lifeline)
    die_with_parent()
    try:
        return work(open_rank_link(sys.argv[1], lifeline))
    except PeerGone:
        _end(0)
        raise


class LinkToLeader:
    """Implements `forward.rank_forward.Leader`."""

    def __init__(self, link: IpcLink[ToRank]) -> None:
        self._link = link
        self._received: list[ToRank] = []
        self.has_loaded = False

    def start(self) -> RankStart:
        """The first message."""
        start = self._next()
        assert isinstance(start, RankStart)
        return start

    def loaded(self, weights_bytes: int) -> None:
        self.has_loaded = True
        self._link.send(RankLoaded(weights_bytes))
        assert isinstance(self._next(), RankJoin)  # ranks wait for each other for a limited time

    def receive(self, timeout_s: float | None) -> list[RankWork]:
        messages, self._received = self._received or self._link.receive(timeout_s), []
        asked: list[RankWork] = []
        for message in messages:
            assert not isinstance(message, RankStart | RankJoin)
            asked.append(message)
        return asked

    def send(self, message: RankAdapter) -> None:
        self._link.send(message)

    def _next(self) -> ToRank:
        first, *self._received = self._received or self._link.receive(None)
        return first


def work(link: IpcLink[ToRank]) -> int:
    """Returns if it could not load; raises PeerGone otherwise."""
    leader = LinkToLeader(link)
    start = leader.start()
    try:
        settings = from_wire(start.settings)
        configure(settings.observe.log_format)
        composition.follow_rank_0(settings, start.rank, start.folder, leader)
    except PeerGone:
        raise
    except Exception as error:
        if leader.has_loaded:
            _fail(start.rank, link.lifeline)
        link.send(_failure(start.rank, error))
    return 1


def _failure(rank: int, error: Exception) -> Failure:
    if isinstance(error, PenstockError):
        return Failure(error.code, error.message, error.param)
    logger.exception("rank %d could not load its weights", rank)
    return Failure(PenstockError.code, f"rank {rank} could not load: {type(error).__name__}: {error}")


def _fail(rank: int, lifeline: int) -> None:
    """A step failed: end at once, which rank 0 notices."""
    if not select.select([lifeline], [], [], GONE_S)[0]:
        logger.exception("rank %d failed", rank)
    _end(1)


def _end(code: int) -> None:
    logging.shutdown()
    os._exit(code)  # an orderly exit may wait for threads of the process group


if __name__ == "__main__":
    sys.exit(main())
