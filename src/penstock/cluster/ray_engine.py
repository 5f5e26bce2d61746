"""An engine on a node of a Ray cluster, as the frontend sees it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

from penstock.cluster.ray_cluster import RayCluster
from penstock.cluster.tcp_link import ListeningLink
from penstock.engine.process import ProcessEngine
from penstock.engine.remote import RemoteEngine
from penstock.flow import Frame, Reply, Start
from penstock.flow.transfer import TransferSetup
from penstock.settings import Settings, to_wire

WAITING = "waiting for a node with room"


class RayEngine(ProcessEngine):
    """Implements flow.WatchedEngine. The actor stands for the process. It has died when Ray says so or when its
    connection is lost, whichever is noticed first: an engine that cannot be reached is as good as dead."""

    link: ListeningLink

    def __init__(
        self,
        settings: Settings,
        secret: bytes,
        cluster: RayCluster,
        on_phase: Callable[[str], None] | None = None,
        *,
        gpus: int = 0,
        transfer: TransferSetup | None = None,
    ) -> None:
        """Takes as many CPUs as the engine has threads. `transfer`: how it exchanges KV blocks with other engines, at
        the address of its node."""
        RemoteEngine.__init__(self, on_phase)
        self._start: Start | None = Start(to_wire(settings), secret, transfer=transfer)  # until the engine is there
        read_end, write_end = os.pipe()
        self.link = ListeningLink(cluster.host, read_end)
        self._released = False
        if on_phase is not None:
            on_phase(WAITING)
        self.process = cluster.start(  # type: ignore[assignment]
            self.link.address,
            self.link.engine_keys.to_line(),
            cpus=settings.engine.threads or 1,
            gpus=gpus,
            on_end=lambda: os.close(write_end),
        )

    @property
    def handles(self) -> tuple[int, ...]:
        return (*super().handles, self.link.monitor_handle)

    def close(self) -> None:
        """Ask it to stop, if it is there, and kill it if it has not soon."""
        if self.dead is None and self.link.linked:
            super().close()
        self.dead = self.dead or "the engine was closed"
        self.process.kill()  # its place becomes free
        self._release()

    def read_messages(self, timeout_s: float | None) -> list[Frame | Reply]:
        messages = super().read_messages(timeout_s)
        if self._start is not None and self.link.linked:
            start, self._start = self._start, None
            self._send(start)
        if self.facts is not None and self.facts["host"] != platform.node():
            self.facts["pid"] = None  # of a process there: here it may be another's
        return messages

    def _note_death(self) -> None:
        """Does not wait for Ray: that may take long to notice that a node is gone."""
        self.dead = "the engine on the cluster died or cannot be reached"
        self.process.kill()

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._close_link()

    def _remove_folder(self) -> None:
        """It has none."""
