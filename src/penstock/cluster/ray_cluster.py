"""A Ray cluster: joined, or started on this machine. Places engines by CPUs and GPUs."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from penstock.cluster.engine_actor import EngineActor
from penstock.errors import InvalidSetting

logger = logging.getLogger(__name__)

AUTO = "auto"
NAMESPACE = "penstock"
OBJECT_STORE_BYTES = 80 << 20  # nothing of Penstock's goes through it; Ray takes no less
CONNECT_S = 5.0
NEEDS_RAY = "cluster needs Ray, which is not installed: pip install 'penstock[ray]'"


class RayCluster:
    """One per server. Ray's client belongs to the whole process."""

    def __init__(self, address: str) -> None:
        """`address`: of a cluster, or AUTO: the one on this machine, which is started if there is none. Blocks. Raises
        InvalidSetting."""
        if address != AUTO:
            _check_reachable(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise InvalidSetting(NEEDS_RAY, param="cluster") from None
        self._ray: Any = ray
        quiet: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "configure_logging": False}
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            if address != AUTO or not isinstance(error, ConnectionError):
                raise InvalidSetting(
                    f"cluster: there is no Ray cluster at {address}, or it wants its token, which Ray sends there only "
                    f"with RAY_AUTH_MODE=token: {error}",
                    param="cluster",
                ) from None
            ray.init(
                include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, _node_ip_address="127.0.0.1", **quiet
            )
        here = self._ray.get_runtime_context().get_node_id()
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in self._ray.nodes()}
        self.host = str(nodes[here])  # of this server, as the other nodes reach it

    @property
    def resources(self) -> dict[str, float]:
        """Of all nodes together: CPU, GPU."""
        return dict(self._ray.cluster_resources())

    @property
    def processors(self) -> dict[str, float]:
        """CPUs and GPUs of all nodes together."""
        return {name: count for name, count in sorted(self.resources.items()) if name in ("CPU", "GPU")}

    def nodes(self) -> list[tuple[int, int]]:
        """CPUs and GPUs of each node that has any CPU."""
        found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        sizes = [(int(one.get("CPU", 0.0)), int(one.get("GPU", 0.0))) for one in found]
        return [size for size in sizes if size[0]]

    def uses_gpu(self, device: str) -> bool:
        """Whether engines for this `device` setting take a GPU each."""
        return device == "cuda" or (device == "auto" and self.resources.get("GPU", 0.0) >= 1)

    def start(self, address: str, keys: bytes, *, cpus: int, gpus: int, on_end: Callable[[], None]) -> EngineOfActor:
        """An engine that connects to `address`. It waits for a node that has room. `on_end` is called once, from
        another thread, when it has ended for any reason."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}
        group = placement_group([bundle], strategy="STRICT_PACK")
        options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_restarts": 0,  # the frontend starts another
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        }
        actor: Any = self._ray.remote(EngineActor).options(**options).remote()
        ended: Future[int] = actor.run.remote(address, keys).future()
        return EngineOfActor(self._ray, actor, group, ended, on_end)

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself waits for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InvalidSetting(f"cluster must be auto or HOST:PORT, got {address!r}", param="cluster")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise InvalidSetting(f"cluster: there is no Ray cluster at {address}: {error}", param="cluster") from None


class EngineOfActor:
    """Stands for the engine's process, as `subprocess.Popen` does for one on this host."""

    stdin = None

    def __init__(self, ray: Any, actor: Any, group: Any, ended: Future[int], on_end: Callable[[], None]) -> None:
        self._ray, self._actor, self._group = ray, actor, group
        self._ended = threading.Event()
        self._code: int | None = None
        self._on_end = on_end
        ended.add_done_callback(self._note_end)

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("engine actor", timeout or 0.0)
        return 1 if self._code is None else self._code

    def kill(self) -> None:
        with suppress(Exception):  # it, or Ray itself, has ended before
            self._ray.kill(self._actor, no_restart=True)
        with suppress(Exception):
            self._ray.util.remove_placement_group(self._group)

    def _note_end(self, ended: Future[int]) -> None:
        try:
            self._code = ended.result()
        except Exception as error:  # the actor or its node has died
            logger.debug("an engine's actor has ended: %s", error)
        if not self._ended.is_set():
            self._ended.set()
            self._on_end()
