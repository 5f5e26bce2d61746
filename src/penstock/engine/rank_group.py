"""The other ranks of a tensor-parallel engine, as rank 0 has them: each is a process of its own.

Rank 0 is the engine process. It starts the others, as the frontend starts it: fresh interpreters, with msgpack over a
socket in a private folder, and a lifeline in both directions. The group lives and dies as one: when any rank ends, rank
0 ends at once, and the others end with it. The frontend sees an engine that died.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import zmq

from penstock import errors
from penstock.engine.ipc import PeerGone, open_link_to_rank
from penstock.errors import EngineDied
from penstock.flow import Failure
from penstock.flow.ranks import RankAdapter, RankJoin, RankLoaded, RankStart, RankWork
from penstock.settings import Settings, child_environment, to_wire
from penstock.system.private_folder import PrivateFolder
from penstock.system.resources import only_gpus

logger = logging.getLogger(__name__)

END_S = 5.0  # in which a process that was killed is gone


class RankProcess:
    """One of the other ranks."""

    def __init__(self, rank: int, settings: Settings, folder: Path, *, has_gpu: bool) -> None:
        """Starts it. `has_gpu`: it sees one of this process's, whose number is its rank."""
        self.rank = rank
        read_end, write_end = os.pipe()
        address = f"ipc://{folder / str(rank)}"
        self.link = open_link_to_rank(address, read_end)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.engine.rank_worker", address],
                stdin=subprocess.PIPE,
                env=child_environment() | (only_gpus([rank]) if has_gpu else {}),
                pass_fds=(write_end,),
                process_group=0,
            )
        except OSError:
            self._close_link()
            raise
        finally:
            os.close(write_end)
        self.link.send(RankStart(to_wire(settings), rank, str(folder)))

    def wait_loaded(self) -> int:
        """The bytes of its weights; raises what keeps it from loading them."""
        try:
            (message,) = self.link.receive(None)
        except PeerGone:
            raise EngineDied(self.death()) from None
        if isinstance(message, Failure):
            raise errors.by_code(message.code, message.message, message.param)
        assert isinstance(message, RankLoaded)
        return message.weights_bytes

    def receive(self) -> Sequence[RankAdapter]:
        """What it has answered since the last call."""
        with suppress(PeerGone):  # the group's watch ends this process
            return [reply for reply in self.link.receive(0.0) if isinstance(reply, RankAdapter)]
        return ()

    def death(self) -> str:
        """How it ended, which its lifeline has told."""
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            return f"rank {self.rank} does not exit"
        return f"rank {self.rank} died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"

    def close(self) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._close_link()

    def _close_link(self) -> None:
        self.link.close()
        os.close(self.link.lifeline)


class RankGroup:
    """Implements `forward.rank_forward.Followers`."""

    def __init__(self, settings: Settings, world: int, *, have_gpus: bool = False) -> None:
        """Starts ranks 1 .. world - 1; they load their weights while this process loads its own. `have_gpus`: one
        each; the first is this process's."""
        self._private = PrivateFolder()
        self.folder = self._private.path
        self._others: list[RankProcess] = []
        self._closing, self._wake = os.pipe()  # a byte tells the watch that the end is meant
        self._watcher: threading.Thread | None = None
        try:
            for rank in range(1, world):
                self._others.append(RankProcess(rank, settings, self.folder, has_gpu=have_gpus))
        except OSError:
            self.close()
            raise

    def wait_loaded(self) -> int:
        """The bytes of their weights; call it when this process has loaded its own. From here on the death of any ends
        this process."""
        total = sum(other.wait_loaded() for other in self._others)
        for other in self._others:
            other.link.send(RankJoin())
        self._watcher = threading.Thread(target=self._watch, name="rank watch", daemon=True)
        self._watcher.start()
        return total

    def send(self, message: RankWork) -> None:
        for other in self._others:
            other.link.send(message)

    def receive(self, wait_s: float) -> list[tuple[int, RankAdapter]]:
        """What they have answered since the last call, by rank. Waits up to `wait_s` for the first."""
        if wait_s:
            poller = zmq.Poller()
            for other in self._others:
                poller.register(other.link.socket, zmq.POLLIN)
            poller.poll(round(wait_s * 1000))
        return [(other.rank, reply) for other in self._others for reply in other.receive()]

    def close(self) -> None:
        """End them."""
        if self._watcher is not None:
            os.write(self._wake, b".")
            self._watcher.join()
        os.close(self._wake)
        os.close(self._closing)
        for other in self._others:
            other.close()
        self._private.remove()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._closing, select.POLLIN)
        others = {other.link.lifeline: other for other in self._others}
        for lifeline in others:
            poll.register(lifeline, 0)  # hang-ups alone
        ended = {handle for handle, _ in poll.poll()}
        if self._closing in ended:
            return
        logger.error("%s; its group ends", "; ".join(others[handle].death() for handle in ended))
        self._private.remove()
        logging.shutdown()
        os._exit(1)  # an orderly exit may wait for a sum that never comes
