"""An engine in a process of its own, as the frontend sees it.

The process is started as a fresh interpreter (`python -m penstock.engine.worker`), not forked and not by
`multiprocessing`: it inherits neither threads nor locks, nothing is pickled, and a user's script needs no `__main__`
guard.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.engine.ipc import PeerGone, open_frontend_link
from penstock.engine.remote import RemoteEngine
from penstock.errors import EngineDied
from penstock.flow import Frame, Reply, Start
from penstock.flow.messages import FromEngine, Stop, ToEngine
from penstock.flow.transfer import TransferSetup
from penstock.settings import Settings, child_environment, to_wire
from penstock.system.private_folder import PrivateFolder
from penstock.system.resources import only_gpus

STOP_GRACE_S = 5.0


class ProcessEngine(RemoteEngine):
    """Implements flow.WatchedEngine."""

    def __init__(
        self,
        settings: Settings,
        secret: bytes,
        on_phase: Callable[[str], None] | None = None,
        *,
        gpus: Sequence[int] = (),
        listen: Path | None = None,
        transfer: TransferSetup | None = None,
    ) -> None:
        """`on_phase` is called with each phase of its start. `gpus`: the GPUs that it sees; none: all. `listen`:
        where more frontends connect. `transfer`: how it exchanges KV blocks with other engines."""
        super().__init__(on_phase)
        self._folder = PrivateFolder()
        address = f"ipc://{self._folder.path / 'engine'}"
        read_end, write_end = os.pipe()
        self.link = open_frontend_link(address, read_end)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.engine.worker", address],
                stdin=subprocess.PIPE,
                env=child_environment() | (only_gpus(gpus) if gpus else {}),
                pass_fds=(write_end,),
                process_group=0,  # out of reach of the terminal's Ctrl-C from the start
            )
        except OSError:
            self._close_link()
            raise
        finally:
            os.close(write_end)  # the child holds the only copy now: it closes when the child ends
        self._send(Start(to_wire(settings), secret, None if listen is None else str(listen), transfer))

    @property
    def handles(self) -> tuple[int, ...]:
        return (int(self.link.socket.fd), self.link.lifeline)

    def wait_ready(self) -> dict[str, Any]:
        """The engine's facts once it is up; raises what kept it from starting."""
        while self.facts is None:
            self.read_messages(None)
            if self.failure is not None or self.dead is not None:
                self.close()
                raise self.failure or EngineDied(self.dead or "")
        return self.facts

    def close(self) -> None:
        """Ask it to stop, and kill it if it has not after STOP_GRACE_S."""
        if self.dead is None:
            self._send(Stop())
            try:
                self.process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.dead = self.dead or "the engine was closed"
        with suppress(subprocess.TimeoutExpired):  # a hanging GPU driver blocks the exit: leave the process behind
            self.process.wait(STOP_GRACE_S)
        self._release()

    def end(self, why: str) -> None:
        self.process.kill()
        self.dead = self.dead or why

    def kill(self) -> None:
        """Without asking it to stop."""
        self.process.kill()
        self._note_death()
        self._release()

    def _send(self, message: ToEngine) -> None:
        if self.dead is None:
            try:
                self.link.send(message)
            except PeerGone:
                self._note_death()

    def read_messages(self, timeout_s: float | None) -> list[Frame | Reply]:
        starting = self.facts is None
        messages = super().read_messages(timeout_s)
        if starting and self.facts is not None:
            self._folder.remove()  # both are connected: nothing is left to clean up if they are killed
        return messages

    def _receive(self, timeout_s: float | None) -> list[FromEngine]:
        if self.dead is None:
            try:
                return self.link.receive(timeout_s)
            except PeerGone:
                self._note_death()
        return []

    def _note_death(self) -> None:
        try:
            code = self.process.wait(STOP_GRACE_S)
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            how = "and does not exit"  # see `close`
        self.dead = f"the engine process died ({how})"

    def _release(self) -> None:
        """Close the link and the process's stdin, which is its lifeline, once."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
            self._close_link()

    def _close_link(self) -> None:
        self.link.close()
        os.close(self.link.lifeline)
        self._folder.remove()
