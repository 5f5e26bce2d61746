"""Cores, GPUs and memory of several engines, without any of them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidSetting, OutOfMemory
from penstock.settings import Settings, load
from penstock.startup.sharing import Claim, Machine, Node, ReplicaShare, share_cluster, share_machine

EIGHT = Machine(cores=8, host_bytes=16 << 30, gpus=2)


def claim(label: str, *, on_gpu: bool = False, replicas: int = 1, **settings: Any) -> Claim:
    return Claim(label, load(settings, environ={}), on_gpu, replicas)


def threads(shares: list[list[ReplicaShare]]) -> list[list[int | None]]:
    return [[one.settings.engine.threads for one in model] for model in shares]


def fractions(shares: list[list[ReplicaShare]]) -> list[list[tuple[tuple[int, ...], float | None]]]:
    return [[(one.gpus, one.settings.cache.memory_fraction) for one in model] for model in shares]


def test_one_engine_finds_out_by_itself() -> None:
    assert share_machine([claim("a")], EIGHT) == [[ReplicaShare(Settings())]]


def test_cores_are_shared_out() -> None:
    shares = share_machine([claim("a", replicas=2), claim("b", threads=2), claim("c")], EIGHT)
    assert threads(shares) == [[2, 2], [2], [2]]
    assert [one.settings.cache.memory_fraction for model in shares for one in model] == [0.125] * 4


def test_a_model_on_demand_does_not_shrink_the_others() -> None:
    later = claim("b")._replace(at_start=False)
    assert threads(share_machine([claim("a"), later], EIGHT)) == [[8], [4]]
    assert threads(share_machine([claim("a", threads=8), claim("b", threads=2)._replace(at_start=False)], EIGHT)) == [
        [8], [2],
    ]  # fmt: skip


def test_gpus_of_a_model_that_runs_on_a_cpu() -> None:
    with pytest.raises(InvalidSetting, match="a: gpus: the model runs on a CPU"):
        share_machine([claim("a")._replace(gpus=(0,))], EIGHT)


def test_more_threads_than_cores() -> None:
    with pytest.raises(InvalidSetting, match="a: threads: all replicas together ask for 10 threads, but there are 8"):
        share_machine([claim("a", threads=3, replicas=2), claim("b", threads=4)], EIGHT)
    with pytest.raises(InvalidSetting, match="b: threads: all replicas together ask for 9 threads"):
        share_machine([claim("a", threads=1), claim("b", threads=8)], EIGHT)


def test_gpus_and_their_memory() -> None:
    shares = share_machine([claim("a", on_gpu=True, replicas=2), claim("b", on_gpu=True, memory_fraction=0.3)], EIGHT)
    assert fractions(shares) == [[((0,), 0.6), ((1,), 0.9)], [((0,), 0.3)]]
    far = claim("a", on_gpu=True)._replace(gpus=(2,))
    with pytest.raises(InvalidSetting, match="a: gpus: there is no GPU 2; the machine has 2"):
        share_machine([far], EIGHT)
    half = [claim(name, on_gpu=True, memory_fraction=0.6) for name in "ab"]
    with pytest.raises(InvalidSetting, match=r"a: memory_fraction: the engines on GPU 0 together ask for 1\.20"):
        share_machine(half, EIGHT)
    greedy = [claim("a", on_gpu=True, memory_fraction=0.95), claim("b", on_gpu=True)]
    with pytest.raises(InvalidSetting, match=r"b: memory_fraction: the other engines on GPU 0 take 0\.95"):
        share_machine(greedy, EIGHT)


def test_each_rank_has_a_gpu() -> None:
    machine = EIGHT._replace(gpus=5)
    wide = claim("a", on_gpu=True, replicas=2, tensor_parallel=2)
    shares = share_machine([wide, claim("b", on_gpu=True)], machine)
    assert fractions(shares) == [[((0, 1), 0.45), ((2, 3), 0.9)], [((0,), 0.45)]]
    assert fractions(share_machine([wide._replace(gpus=(4, 1, 2))], machine)) == [[((4, 1), 0.45), ((2, 4), 0.45)]]
    with pytest.raises(InvalidSetting, match="a: tensor_parallel: 2 ranks need a GPU each, but the model has 1"):
        share_machine([wide._replace(gpus=(3,))], machine)


def test_weights_that_do_not_fit_together() -> None:
    claims = [claim("a")._replace(weights_bytes=9 << 30), claim("b", kv_memory="8GiB")]
    with pytest.raises(OutOfMemory, match=r"a: model: .*17.00 GiB \(a 9.00 GiB, b 8.00 GiB\), but 16.00 GiB are free"):
        share_machine(claims, EIGHT)


def test_later_the_memory_of_engines_that_run_is_not_counted_again() -> None:
    claims = [claim(name)._replace(weights_bytes=9 << 30) for name in "ab"]
    with pytest.raises(OutOfMemory):
        share_machine(claims, EIGHT)
    assert len(share_machine(claims, EIGHT, check_memory=False)) == 2


def test_a_replica_on_a_cluster_takes_its_threads_or_all_of_the_smallest_node() -> None:
    shares = share_cluster(
        [claim("a", replicas=2), claim("b", threads=3), claim("c", on_gpu=True), claim("d", tensor_parallel=3)],
        [Node(2), Node(8, gpus=2)],
    )
    assert [[share.settings.engine.threads for share in one] for one in shares] == [[2, 2], [3], [1], [3]]
    assert [[share.gpus for share in one] for one in shares] == [[(), ()], [()], [(0,)], [()]]


def test_the_ranks_of_a_replica_take_a_gpu_and_a_cpu_each_of_one_node() -> None:
    nodes = [Node(8, gpus=2), Node(3, gpus=4)]
    (shares,) = share_cluster([claim("a", on_gpu=True, replicas=2, tensor_parallel=3)], nodes)
    assert [(share.gpus, share.settings.engine.threads) for share in shares] == [((0, 1, 2), 3)] * 2
    with pytest.raises(
        InvalidSetting, match=r"a: tensor_parallel: 8 ranks need a GPU each, but no node .* more than 4"
    ):
        share_cluster([claim("a", on_gpu=True, tensor_parallel=8)], nodes)
    with pytest.raises(
        InvalidSetting, match=r"tensor_parallel: a replica takes 4 CPUs, .* with 4 GPUs has more than 3"
    ):
        share_cluster([claim("a", on_gpu=True, tensor_parallel=4)], nodes)


def test_gpus_of_a_cluster_are_rays_to_give() -> None:
    with pytest.raises(InvalidSetting, match="a: gpus: on a cluster Ray gives each replica its GPUs: leave it out"):
        share_cluster([claim("a", on_gpu=True)._replace(gpus=(1,))], [Node(8, gpus=2)])


def test_a_cluster_without_nodes_may_get_some() -> None:
    ((share,),) = share_cluster([claim("a", on_gpu=True, tensor_parallel=2)], [])
    assert (share.gpus, share.settings.engine.threads) == ((0, 1), 2)


def test_no_node_of_the_cluster_has_so_many_cpus() -> None:
    with pytest.raises(InvalidSetting, match=r"a: threads: a replica takes 9 CPUs, but no node .* more than 8"):
        share_cluster([claim("a", threads=9)], [Node(2), Node(8)])
