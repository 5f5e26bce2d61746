"""An engine on one GPU that does all that one rank of several does: its process group is of NCCL and has one member,
its products are summed over the ranks, and its logits gathered from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.flow.ranks import RankWork
from penstock.forward import cuda_startup
from penstock.forward.backend import BackendConfig
from penstock.forward.cuda_ranks import RankPlace, SilentRanks
from penstock.kernels.interface import Linear
from penstock.kernels.process_ranks import ProcessRanks
from penstock.model.layers.build import LayerBuilder


class NoFollowers:
    """Implements `rank_forward.Followers`."""

    def __init__(self) -> None:
        self.sent: list[RankWork] = []

    def wait_loaded(self) -> int:
        return 0

    def send(self, message: RankWork) -> None:
        self.sent.append(message)

    def close(self) -> None: ...


def become_lone_rank(
    folder: str, put: Callable[[Any, str, Any], None] = setattr, followers: NoFollowers | None = None
) -> None:
    """Engines that are built from now on are such. `folder` is used once; `put` as of monkeypatch. `followers` are told
    what other ranks would be."""
    linear, start = LayerBuilder.linear, cuda_startup._start
    ranks: list[ProcessRanks] = []

    def summed(self: LayerBuilder, name: str, *, reduce: bool = False, **parts: Any) -> Linear:
        return linear(self, name, **parts)._replace(reduce=reduce)

    def join(config: BackendConfig) -> RankPlace:
        ranks.extend([] if ranks else [ProcessRanks(0, 1, folder, device=torch.device("cuda", 0))])
        return RankPlace(ranks[0], config.spec.vocab_size)

    def with_followers(config: BackendConfig, grammars: Any, end_phase: Any, loaded: Any) -> Any:
        backend, size = start(config, grammars, end_phase, loaded)
        if followers is not None:
            backend.lead(followers)
        return backend, size

    put(LayerBuilder, "linear", summed)
    put(cuda_startup, "join", join)
    put(cuda_startup, "silent_place", lambda _, vocab_size: RankPlace(SilentRanks(0, 1), vocab_size))
    put(cuda_startup, "_start", with_followers)
