from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect

from helpers.key_stores import BOSS, Clock, load_keys, open_store
from penstock.deployment.protocol import ModelCard, ServedModel
from penstock.deployment.registry import ModelRegistry
from penstock.deployment.ticket import Ticket
from penstock.errors import KeyExpired, KeyRevoked, ModelNotFound
from penstock.flow import Request, SamplingParams
from penstock.flow.identity import UNNAMED
from penstock.gateway.keys.identity import Identity
from penstock.gateway.keys.manager import KeyManager
from penstock.gateway.keys.store import KeyStore
from penstock.gateway.keys.tiers import TIERS
from penstock.http.service import Service
from penstock.observe.metrics import PrometheusMetrics


class Deployment:
    """Notes what is cancelled."""

    source = UNNAMED

    def __init__(self) -> None:
        self.cancelled: list[Ticket] = []

    def cancel(self, ticket: Ticket) -> None:
        self.cancelled.append(ticket)


class StubGateway:
    """Takes every request, which then runs for ever."""

    def __init__(self) -> None:
        self.deployment = Deployment()
        self.requests: list[Request] = []
        self.waiting: asyncio.Event | None = None  # for others, who never answer
        self.cancelled = False

    def waits_for_others(self, model: ServedModel, requests: list[Request]) -> bool:
        return self.waiting is not None

    async def submit(self, model: ServedModel, requests: list[Request], account: Any) -> Ticket:
        self.requests += requests
        if self.waiting is not None:
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True
        ticket = Ticket([], cast(Any, self.deployment))
        ticket.num_open = 1
        return ticket

    def finish(self, ticket: Ticket) -> None: ...


def made(store: KeyStore | None = None, clock: Clock | None = None, **options: Any) -> tuple[Service, StubGateway]:
    gateway = StubGateway()
    models = [SimpleNamespace(card=ModelCard(name=name, aliases=aliases)) for name, aliases in MODELS]
    if store is not None and clock is not None:
        keys = load_keys(store, clock)
        options |= {"keys": keys, "key_manager": KeyManager(store, keys)}
    registry = ModelRegistry(cast(Any, models))
    service = Service(registry, cast(Any, gateway), PrometheusMetrics(UNNAMED), stall_s=1.0, **options)
    service.emit = None
    return service, gateway


MODELS = (("small", ("mini",)), ("large", ()))


async def submit(service: Service, identity: Identity, model: str = "small", receive: Any = None) -> Ticket:
    request = Request(id="r-0", params=SamplingParams(max_tokens=None), text="hi")
    return await service.submit(service.models.find(model), [request], identity, receive or stays)


async def stays() -> Any:
    """The messages of a client that never hangs up."""
    await asyncio.Event().wait()


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_a_request_carries_what_its_key_has() -> None:
    service, gateway = made()
    run(submit(service, Identity(tenant="acme", tier="bulk", weight=2.5, default_max_tokens=7)))
    (request,) = gateway.requests
    assert (request.tenant, request.tier, request.weight) == ("acme", TIERS["bulk"], 2.5)
    assert request.params.max_tokens == 7


def test_a_client_that_hangs_up_while_others_are_asked_cancels_that() -> None:
    async def work() -> None:
        service, gateway = made()
        gateway.waiting = asyncio.Event()

        async def leaves() -> Any:
            assert gateway.waiting is not None
            await gateway.waiting.wait()
            return {"type": "http.disconnect"}

        with pytest.raises(ClientDisconnect):
            await submit(service, Identity(), receive=leaves)
        assert gateway.cancelled
        assert service.open == 0

    run(work())


@pytest.mark.parametrize(("allowed", "names"), [(None, 2), ({"mini"}, 1), ({"small:latest"}, 1), ({"other"}, 0)])
def test_a_key_has_the_models_that_it_may_use(allowed: set[str] | None, names: int) -> None:
    service, gateway = made()
    identity = Identity(models=None if allowed is None else frozenset(allowed))
    models = service.models_of(identity)
    assert len(models) == names
    if names < 2:
        for call in (lambda: models.find("large"), lambda: run(submit(service, identity, "large"))):
            with pytest.raises(ModelNotFound) as error:
                call()
            assert "small" not in error.value.message or names == 1
        assert gateway.requests == []
    if not names:
        with pytest.raises(ModelNotFound):
            models.find(None)


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_running_requests_of_a_key_that_is_not_valid_any_more_end(tmp_path: Path, how: str) -> None:
    async def work(store: KeyStore, clock: Clock) -> None:
        record, _ = store.create_key("acme", {"expires_at": int(clock.now) + 60}, BOSS)
        other, _ = store.create_key("acme", {}, BOSS)
        service, gateway = made(store, clock)
        assert service.key_manager is not None
        keys = service.key_manager.keys
        ending = await submit(service, keys.find(record.id))
        going_on = await submit(service, keys.find(other.id))
        service.key_manager.on_poll()
        assert (ending.error, going_on.error) == (None, None)
        if how == "revoked":
            store.revoke_key(record.id, BOSS)
        clock.now += 60
        keys.apply(store.changes_since(keys.number))
        for _ in range(2):
            service.key_manager.on_poll()
        assert isinstance(ending.error, KeyRevoked if how == "revoked" else KeyExpired)
        assert "while this request was running" in ending.error.message
        assert going_on.error is None
        assert gateway.deployment.cancelled == [ending], "its work ends once"

    clock = Clock()
    with open_store(tmp_path, clock) as store:
        run(work(store, clock))


def test_by_policy_they_finish(tmp_path: Path) -> None:
    async def work(store: KeyStore, clock: Clock) -> None:
        record, _ = store.create_key("acme", {}, BOSS)
        service, _ = made(store, clock, end_revoked=False)
        assert service.key_manager is not None
        keys = service.key_manager.keys
        ticket = await submit(service, keys.find(record.id))
        store.revoke_key(record.id, BOSS)
        keys.apply(store.changes_since(keys.number))
        service.key_manager.on_poll()
        assert ticket.error is None

    clock = Clock()
    with open_store(tmp_path, clock) as store:
        run(work(store, clock))
