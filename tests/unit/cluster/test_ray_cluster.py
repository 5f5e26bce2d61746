"""Without Ray: what stands for a process on another host, and the error where Ray is missing."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from typing import Any

import pytest

from helpers.ports import reserve_port
from penstock.cluster.ray_cluster import EngineOfActor, RayCluster
from penstock.errors import InvalidSetting


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'penstock\[ray\]'") as raised:
        RayCluster("auto")
    assert raised.value.param == "cluster"


@pytest.mark.parametrize("address", ["head", "ray://head:10001", ":6379", "head:port"])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InvalidSetting, match="cluster must be auto or HOST:PORT"):
        RayCluster(address)


def test_nobody_is_there() -> None:
    with pytest.raises(InvalidSetting, match=f"there is no Ray cluster at 127.0.0.1:{(port := reserve_port())}: "):
        RayCluster(f"127.0.0.1:{port}")


class BrokenRay:
    """As it is once the connection to the cluster is lost."""

    def kill(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("there is no cluster")


@pytest.mark.parametrize(("end", "code"), [(0, 0), (-9, -9), (RuntimeError("the actor died"), 1)])
def test_the_end_of_an_actor_is_told_once(end: int | Exception, code: int) -> None:
    ended: Future[int] = Future()
    told: list[str] = []
    engine = EngineOfActor(BrokenRay(), object(), object(), ended, lambda: told.append("end"))
    with pytest.raises(subprocess.TimeoutExpired):
        engine.wait(0.0)
    if isinstance(end, int):
        ended.set_result(end)
    else:
        ended.set_exception(end)
    assert engine.wait(5.0) == code
    assert told == ["end"]
    engine.kill()
