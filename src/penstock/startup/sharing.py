"""Shares the machine out among the engines of several models, before any of them starts: cores, GPUs and memory.

What an entry sets is checked against all others; what it leaves out gets an equal part of the rest. Models that are
loaded on demand take their part beside those loaded at the start: at most one of them is counted at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from penstock.errors import InvalidSetting, OutOfMemory
from penstock.settings import Settings, parse_bytes
from penstock.startup.preflight import readable

GPU_FRACTION = 0.9  # of a GPU's memory, for all engines on it
HOST_FRACTION = 0.5  # of the free memory for KV blocks of all engines on the CPU
ONE_HOST_FRACTION = 0.25  # of it for one engine


class Claim(NamedTuple):
    """What a model wants of the machine."""

    label: str  # of its entry, for errors
    settings: Settings
    on_gpu: bool
    replicas: int = 1
    gpus: tuple[int, ...] = ()  # none: all there are
    at_start: bool = True
    weights_bytes: int = 0


class Machine(NamedTuple):
    cores: int
    host_bytes: int
    gpus: int = 0


class Node(NamedTuple):
    """What a node of a cluster has."""

    cpus: int
    gpus: int = 0


class ReplicaShare(NamedTuple):
    """The settings of one engine, and the GPUs it sees, one for each of its ranks; none: it sees all."""

    settings: Settings
    gpus: tuple[int, ...] = ()


def share_machine(claims: Sequence[Claim], machine: Machine, *, check_memory: bool = True) -> list[list[ReplicaShare]]:
    """The share of every replica of every model. Raises InvalidSetting or OutOfMemory, which name entry and key.
    `check_memory`: no engine has taken its part of the host's free memory so far."""
    if len(claims) == 1 and claims[0].replicas == 1 and not claims[0].gpus:
        return [[ReplicaShare(claims[0].settings)]]  # one engine: it finds out by itself
    if check_memory:
        _check_host_memory(claims, machine)
    places = [_place(claim, machine) for claim in claims]
    return [
        [
            ReplicaShare(_with_share(claims, index, gpus, places, machine), gpus)
            for gpus in (places[index] if claim.on_gpu else [()] * claim.replicas)
        ]
        for index, claim in enumerate(claims)
    ]


def share_cluster(claims: Sequence[Claim], nodes: Sequence[Node]) -> list[list[ReplicaShare]]:
    """The same on a cluster, whose scheduler places each replica on a node: it takes `threads` CPUs, without that all
    of the node that has the fewest; on GPUs one for each of its ranks, and as many CPUs. Raises InvalidSetting."""
    shares = []
    for claim in claims:
        ranks = claim.settings.engine.tensor_parallel
        gpus = tuple(range(ranks)) if claim.on_gpu else ()
        fewest = 1 if claim.on_gpu else min((node.cpus for node in nodes), default=1)
        threads = claim.settings.engine.threads or max(ranks, fewest)
        _check_nodes(claim, nodes, Node(threads, len(gpus)))
        settings = replace(claim.settings, engine=replace(claim.settings.engine, threads=threads))
        shares.append([ReplicaShare(settings, gpus)] * claim.replicas)
    return shares


def _check_nodes(claim: Claim, nodes: Sequence[Node], wanted: Node) -> None:
    """A node has room for a replica when nothing else runs there. A cluster without nodes may get some."""
    if claim.gpus:
        raise InvalidSetting(
            f"{claim.label}: gpus: on a cluster Ray gives each replica its GPUs: leave it out", param="gpus"
        )
    if not nodes:
        return
    if wanted.gpus > (most := max(node.gpus for node in nodes)):
        raise InvalidSetting(
            f"{claim.label}: tensor_parallel: {wanted.gpus} ranks need a GPU each, but no node of the cluster has more "
            f"than {most}: lower tensor_parallel",
            param="tensor_parallel",
        )
    if wanted.cpus > (most := max(node.cpus for node in nodes if node.gpus >= wanted.gpus)):
        key = "threads" if claim.settings.engine.threads else "tensor_parallel"
        such = f" with {wanted.gpus} GPUs" if wanted.gpus else ""
        raise InvalidSetting(
            f"{claim.label}: {key}: a replica takes {wanted.cpus} CPUs, but no node of the cluster{such} has more than "
            f"{most}: lower {key}",
            param=key,
        )


def _with_share(
    claims: Sequence[Claim],
    index: int,
    gpus: tuple[int, ...],
    places: Sequence[list[tuple[int, ...]]],
    machine: Machine,
) -> Settings:
    settings = claims[index].settings
    if not gpus:
        threads = _threads(claims, index, machine)
        fraction = settings.cache.memory_fraction or _host_fraction(claims, index)
        settings = replace(settings, engine=replace(settings.engine, threads=threads))
    else:
        fraction = min(_gpu_fraction(claims, index, gpu, places) for gpu in gpus)
    return replace(settings, cache=replace(settings.cache, memory_fraction=fraction))


def _threads(claims: Sequence[Claim], index: int, machine: Machine) -> int:
    """Cores of a replica on the CPU. One of a model on demand may have to share them with others for a while."""
    claim = claims[index]
    rivals = [one for one in claims if not one.on_gpu and (one.at_start or one is claim)]
    asked = sum(one.replicas * (one.settings.engine.threads or 0) for one in rivals)
    if not claim.at_start and claim.settings.engine.threads is not None:
        asked = claim.replicas * claim.settings.engine.threads
    if asked > machine.cores and claim.settings.engine.threads is not None:
        largest = max(rivals, key=lambda one: one.replicas * (one.settings.engine.threads or 0))
        raise InvalidSetting(
            f"{largest.label}: threads: all replicas together ask for {asked} threads, but there are {machine.cores} "
            "cores: lower threads or replicas",
            param="threads",
        )
    if claim.settings.engine.threads is not None:
        return claim.settings.engine.threads
    open_replicas = sum(one.replicas for one in rivals if one.settings.engine.threads is None)
    return max(1, (machine.cores - asked) // open_replicas)


def _host_fraction(claims: Sequence[Claim], index: int) -> float:
    engines = sum(one.replicas for one in claims if not one.on_gpu and (one.at_start or one is claims[index]))
    return min(ONE_HOST_FRACTION, HOST_FRACTION / engines)


def _place(claim: Claim, machine: Machine) -> list[tuple[int, ...]]:
    """The GPUs of each replica."""
    if not claim.on_gpu and claim.gpus:
        raise InvalidSetting(f"{claim.label}: gpus: the model runs on a CPU: leave it out", param="gpus")
    if not claim.on_gpu:
        return []
    if claim.gpus and max(claim.gpus) >= machine.gpus:
        raise InvalidSetting(
            f"{claim.label}: gpus: there is no GPU {max(claim.gpus)}; the machine has {machine.gpus}", param="gpus"
        )
    gpus = claim.gpus or tuple(range(machine.gpus)) or (0,)
    ranks, count = claim.settings.engine.tensor_parallel, len(gpus)
    if ranks > count:
        raise InvalidSetting(
            f"{claim.label}: tensor_parallel: {ranks} ranks need a GPU each, but the model has {count}: lower "
            "tensor_parallel, or give it more gpus",
            param="tensor_parallel",
        )
    first = [number * ranks for number in range(claim.replicas)]
    return [tuple(gpus[place % count] for place in range(begin, begin + ranks)) for begin in first]


def _gpu_fraction(claims: Sequence[Claim], index: int, gpu: int, places: Sequence[list[tuple[int, ...]]]) -> float:
    claim = claims[index]
    alone = not claim.at_start and claim.settings.cache.memory_fraction is not None  # others make way for it
    engines = [
        one
        for one, place in zip(claims, places, strict=True)
        if one is claim or (one.at_start and not alone)
        for where in place
        if gpu in where
    ]
    asked = sum(one.settings.cache.memory_fraction or 0.0 for one in engines)
    if asked > 1.0 + 1e-9:
        raise InvalidSetting(
            f"{claim.label}: memory_fraction: the engines on GPU {gpu} together ask for {asked:.2f} of its memory: "
            "lower one, or give the models different gpus",
            param="memory_fraction",
        )
    if claim.settings.cache.memory_fraction is not None:
        return claim.settings.cache.memory_fraction
    rest = GPU_FRACTION - asked
    if rest <= 0:
        raise InvalidSetting(
            f"{claim.label}: memory_fraction: the other engines on GPU {gpu} take {asked:.2f} of its memory, which "
            "leaves nothing: set it",
            param="memory_fraction",
        )
    return round(rest / sum(one.settings.cache.memory_fraction is None for one in engines), 4)


def _check_host_memory(claims: Sequence[Claim], machine: Machine) -> None:
    """Weights and KV blocks of all engines on the CPU that run at once, as far as they are known."""
    needs = {claim.label: host_bytes_needed(claim) for claim in claims if not claim.on_gpu and claim.at_start}
    needed = sum(needs.values())
    if needed > machine.host_bytes:
        listed = ", ".join(f"{label} {readable(count)}" for label, count in needs.items())
        largest = max(needs, key=lambda label: needs[label])
        raise OutOfMemory(
            f"{largest}: model: the weights and kv_memory of the models that are loaded at the start take "
            f"{readable(needed)} ({listed}), but {readable(machine.host_bytes)} are free: load one of them on demand, "
            "or choose smaller ones",
            param="model",
        )


def host_bytes_needed(claim: Claim) -> int:
    """A lower bound. Replicas map the same file: the system keeps its pages once, other memory is their own."""
    cache = claim.settings.cache
    kv = parse_bytes(cache.kv_memory, "kv_memory") if cache.kv_memory is not None else 0
    return claim.weights_bytes + claim.replicas * claim.settings.engine.tensor_parallel * kv
