"""The models of a server: what memory of which GPUs their engines hold."""

from __future__ import annotations

from typing import Any, cast

from penstock.settings import EngineSettings, ModelEntry, Settings
from penstock.startup.server_models import FoundModel, ServerModels
from penstock.startup.sharing import Claim, ReplicaShare


def test_an_engine_that_finds_its_gpus_itself_holds_one_for_each_rank() -> None:
    settings = Settings(engine=EngineSettings(tensor_parallel=2))
    models = ServerModels(settings, b"secret")
    models._claims["tiny"] = Claim("tiny", settings, on_gpu=True)
    found = FoundModel(ModelEntry(name="tiny"))

    def held(*shares: ReplicaShare) -> dict[int, float]:
        return dict(models.resident(found, cast(Any, None), list(shares)).gpu_fractions)

    assert held(ReplicaShare(settings)) == {0: 0.9, 1: 0.9}
    assert held(ReplicaShare(settings, (2, 3))) == {2: 0.9, 3: 0.9}
