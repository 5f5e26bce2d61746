"""Models as operators see them: beside the card of /v1/models, their deployments with load and circuit breaker."""

from __future__ import annotations

from typing import Literal

from penstock.deployment.autoscaler import Autoscaler
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import Deployment, ServedModel, State
from penstock.deployment.replica import Replica
from penstock.deployment.scale_policy import ScaleLimits
from penstock.gateway.gateway import Gateway
from penstock.gateway.route_model import RouteModel
from penstock.gateway.track import DeploymentTrack
from penstock.http.api.model_card import Model, describe
from penstock.http.api.response_bodies import Body
from penstock.http.service import ModelManager


class Breaker(Body, kw_only=True, frozen=True):
    """The circuit breaker of a deployment."""

    state: Literal["closed", "open", "half_open", "held"]
    wait_s: float  # until a request may be sent again
    failures: int  # failed attempts since the start of the server


class ManagedDeployment(Body, kw_only=True, frozen=True):
    """A replica or an upstream. Null: the upstream, or an engine that is not there, does not say."""

    name: str  # "smollm2/0"
    replica: int
    state: str
    role: Literal["prefill", "decode"] | None  # null: its model has no prefill and decode pools
    open: int  # sequences that have not ended
    open_tokens: int  # prompt tokens of those without output
    running: int | None
    waiting: int | None
    kv_use: float | None  # share of the KV blocks
    device: str | None
    host: str | None  # the machine it runs on
    weights_bytes: int | None
    kv_bytes: int | None
    restarts: int
    decisions: int  # requests that a policy gave to it
    ttft_s: float | None  # average of late
    stale: list[str]  # signals that routing does not rely on
    breaker: Breaker


class Fallback(Body, kw_only=True, frozen=True):
    """A model that stands in for another."""

    model: str
    max_tokens: int | None


class Scaling(Body, kw_only=True, frozen=True):
    """Of a local model: how many replicas it has and may have, and how many its load would fill."""

    replicas: int  # that take requests or start
    min_replicas: int
    max_replicas: int
    demand: float


class ManagedModel(Model, kw_only=True, frozen=True):
    """A model, with what only operators see of it."""

    kind: Literal["local", "adapter", "upstream", "route"]
    region: str | None
    pinned: bool  # never unloaded
    expires_s: float | None  # until it is unloaded if no request comes; null: never
    fallback: list[Fallback]
    policy: str | None  # of a route
    models: list[str]  # of a route
    scaling: Scaling | None  # null: not a local model
    deployments: list[ManagedDeployment]


class ManagedModelList(Body, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[ManagedModel]


def describe_managed(
    model: ServedModel, gateway: Gateway, manager: ModelManager, autoscaler: Autoscaler
) -> ManagedModel:
    public = describe(model)
    local = model if isinstance(model, LocalModel) else None
    route = model if isinstance(model, RouteModel) else None
    chain = gateway.chains.get(model.card.name, ())
    return ManagedModel(
        **{name: getattr(public, name) for name in public.__struct_fields__},
        kind=_kind(model),
        region=model.card.region,
        pinned=local is not None and manager.is_pinned(local),
        expires_s=None if local is None else manager.expires_in(local),
        fallback=[Fallback(model=link.model, max_tokens=link.max_tokens) for link in chain],
        policy=None if route is None else route.policy,
        models=[] if route is None else list(route.names),
        scaling=None if local is None or local.base is not local else describe_scaling(local, autoscaler),
        deployments=[] if model.card.parent else [_describe_deployment(one, gateway) for one in model.deployments],
    )


def describe_scaling(model: LocalModel, autoscaler: Autoscaler) -> Scaling:
    replicas = model.replicas
    limits = replicas.limits or ScaleLimits(replicas.count, replicas.count)
    return Scaling(
        replicas=replicas.count if replicas.replicas else 0,
        min_replicas=limits.least,
        max_replicas=limits.most,
        demand=round(autoscaler.demand(model), 3),
    )


def _kind(model: ServedModel) -> Literal["local", "adapter", "upstream", "route"]:
    if isinstance(model, RouteModel):
        return "route"
    if model.card.parent is not None:
        return "adapter"
    return "upstream" if model.card.remote else "local"


def _describe_deployment(deployment: Deployment, gateway: Gateway) -> ManagedDeployment:
    load = deployment.load()
    track = gateway.router.tracks.get(deployment.name) or DeploymentTrack()  # nothing has been sent to it so far
    engine = deployment if isinstance(deployment, Replica) else None
    facts = {} if engine is None else engine.facts
    asleep = deployment.state is State.ASLEEP  # it has released both
    breaker = track.breaker
    return ManagedDeployment(
        name=deployment.name,
        replica=deployment.source.replica,
        state=deployment.state.value,
        role=None if engine is None or engine.role is None else engine.role.value,
        open=load.open,
        open_tokens=load.open_tokens,
        running=load.running,
        waiting=load.waiting,
        kv_use=load.kv_use,
        device=facts.get("device"),
        host=facts.get("host"),
        weights_bytes=None if asleep else facts.get("weights_bytes"),
        kv_bytes=None if asleep else facts.get("kv_bytes"),
        restarts=0 if engine is None else engine.restarts,
        decisions=track.decisions,
        ttft_s=track.ttft_s,
        stale=[name for name, stale in (("load", track.stale_load), ("prefix", track.stale_prefix)) if stale],
        breaker=Breaker(state=breaker.state.value, wait_s=round(breaker.wait_s, 1), failures=track.failures),
    )
