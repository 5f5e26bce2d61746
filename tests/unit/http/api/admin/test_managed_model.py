from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.deployment.autoscaler import Autoscaler
from penstock.deployment.protocol import Deployment, Load, ModelCard, Price, ServedModel, State
from penstock.deployment.registry import ModelRegistry
from penstock.deployment.replica import Replica
from penstock.errors import ModelNotFound, UpstreamFailed
from penstock.flow.identity import Source
from penstock.gateway.breaker import FIRST_PAUSE_S, MIN_FAILURES
from penstock.gateway.gateway import ChainLink, Gateway
from penstock.gateway.route_model import RouteModel
from penstock.gateway.router import Router
from penstock.http.api.admin.managed_model import describe_managed
from penstock.http.service import ModelManager

CARD = ModelCard(name="far", context=512, price=Price(input=1.0, output=2.0), region="eu", remote=True)


def upstream(load: Load) -> ServedModel:
    deployment = SimpleNamespace(name="far/0", source=Source("far"), card=CARD, state=State.READY, load=lambda: load)
    return cast(ServedModel, SimpleNamespace(card=CARD, state=State.READY, deployments=[cast(Deployment, deployment)]))


def described(model: ServedModel, gateway: Gateway) -> Any:
    return describe_managed(model, gateway, cast(ModelManager, None), Autoscaler(list))


def test_a_deployment_tells_its_load_and_its_circuit() -> None:
    models = ModelRegistry([upstream(Load(open=3, open_tokens=40))])
    router = Router(clock=lambda: 0.0)
    gateway = Gateway(router, models.find, {"far": [ChainLink("near", 16)]})
    far = described(models.find("far"), gateway)
    (deployment,) = far.deployments
    assert (far.kind, far.region, far.pinned, far.expires_s) == ("upstream", "eu", False, None)
    assert [(one.model, one.max_tokens) for one in far.fallback] == [("near", 16)]
    assert (deployment.open, deployment.open_tokens, deployment.kv_use, deployment.device) == (3, 40, None, None)
    assert (deployment.breaker.state, deployment.breaker.wait_s) == ("closed", 0.0)
    assert not router.tracks, "looking at it leaves no trace"
    for _ in range(MIN_FAILURES):
        router.fail("far/0", UpstreamFailed("broken"))
    breaker = described(models.find("far"), gateway).deployments[0].breaker
    assert (breaker.state, breaker.wait_s, breaker.failures) == ("open", FIRST_PAUSE_S, MIN_FAILURES)


def test_the_memory_of_a_replica_that_is_asleep_is_released() -> None:
    class Near(Replica):
        def __init__(self, state: State) -> None:
            self.source, self.name, self._state = Source("near"), "near/0", state
            self.role, self.restarts, self.draining = None, 0, False
            self.facts = {"device": "cpu", "weights_bytes": 5, "kv_bytes": 7}

        def load(self) -> Load:
            return Load()

    def shown(state: State) -> Any:
        model = SimpleNamespace(card=CARD, state=state, deployments=[Near(state)])
        return described(cast(ServedModel, model), Gateway(Router(), ModelRegistry().find)).deployments[0]

    awake, asleep = shown(State.READY), shown(State.ASLEEP)
    assert (awake.weights_bytes, awake.kv_bytes) == (5, 7)
    assert (asleep.device, asleep.weights_bytes, asleep.kv_bytes) == ("cpu", None, None)


def test_a_route_without_its_models_is_no_obstacle_to_finding_others() -> None:
    models = ModelRegistry([upstream(Load())])
    models.add(RouteModel("auto", ["gone"], "cost", models.find, Router()))
    with pytest.raises(ModelNotFound, match="the model 'nope' does not exist; this server has 'far', 'auto'"):
        models.find("nope")
    assert [model.card.name for model in models] == ["far", "auto"]


def test_a_route_is_listed_even_if_its_models_are_gone() -> None:
    models = ModelRegistry([upstream(Load())])
    gateway = Gateway(Router(), models.find)
    route = described(RouteModel("auto", ["far", "gone"], "cost", models.find, gateway.router), gateway)
    assert (route.kind, route.policy, route.models, route.state) == ("route", "cost", ["far", "gone"], "ready")
    assert route.deployments == []
    empty = described(RouteModel("auto", ["gone"], "cost", models.find, gateway.router), gateway)
    assert (empty.state, empty.max_model_len) == ("unloaded", None)
