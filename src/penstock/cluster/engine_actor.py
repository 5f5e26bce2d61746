"""Runs on a node of the cluster: starts an engine process there and lives as long as it does. Imports nothing of the
engine: that is the process's."""

from __future__ import annotations

import subprocess
import sys

from penstock.settings import child_environment


class EngineActor:
    """When the actor is killed, the pipe to the engine process closes, and that ends by itself."""

    def run(self, address: str, keys: bytes) -> int:
        """`address` is the frontend's, `keys` a line of EngineKeys. Returns the exit code of the process."""
        from ray.util import get_node_ip_address

        host: str = get_node_ip_address()  # type: ignore[no-untyped-call]
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.engine.worker", address, host],
            stdin=subprocess.PIPE,
            env=child_environment(),
            process_group=0,
        )
        assert process.stdin is not None
        process.stdin.write(keys)
        process.stdin.flush()
        return process.wait()
