"""Attempts over a chain of models: retries, deadlines and degradation, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from helpers.virtual_time import run_virtual
from penstock.deployment.protocol import Call, Load, ModelCard, State
from penstock.deployment.ticket import Ticket
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.deployment.upstream_request import UpstreamRequest
from penstock.errors import (
    ContextOverflow,
    EngineDied,
    InvalidRequest,
    ModelNotFound,
    OutOfMemory,
    PenstockError,
    QueueFull,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamTimeout,
)
from penstock.flow import Chunk, FinishReason, Request, SamplingParams
from penstock.flow.identity import SequenceNumbers, Source
from penstock.gateway.breaker import MIN_FAILURES, BreakerState
from penstock.gateway.fallback import RetryPlan
from penstock.gateway.gateway import ChainLink, Gateway
from penstock.gateway.route_model import RouteModel
from penstock.gateway.router import Router
from penstock.observe import events

Step = PenstockError | str | float  # raise it, answer it, or wait so many seconds
NUMBERS = SequenceNumbers()


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeModel:
    """A model whose deployment follows a script: one list of steps per attempt; the last list repeats. An error that
    is the first step is raised by `submit`, later ones end the ticket."""

    state = State.READY
    template_variables: frozenset[str] = frozenset()
    chat_format = None
    vocabulary: Any = None
    prefixes = None

    def __init__(self, name: str, *scripts: list[Step], remote: bool = True) -> None:
        self.card = ModelCard(name=name, remote=remote)
        self.sampling: dict[str, Any] = {}
        self.name = f"{name}/0"
        self.source = Source(name)
        self.scripts = list(scripts)
        self.invalid: InvalidRequest | None = None
        self.load_s = 0.0  # before it takes a request
        self.calls: list[tuple[float, Call]] = []
        self.cancelled: list[Ticket] = []

    @property
    def deployments(self) -> Sequence[Any]:
        return (self,)

    async def prepare(self, requests: list[Request]) -> Call:
        if self.invalid is not None:
            raise self.invalid
        endpoint = Endpoint(
            name=self.card.name, url="http://x", model="m", capabilities=frozenset(("chat", "extensions", "reasoning"))
        )
        return Call(requests, [UpstreamRequest(request, endpoint, None, NUMBERS) for request in requests])

    async def submit(self, call: Call) -> Ticket:
        self.calls.append((now(), call))
        if self.load_s:
            await asyncio.sleep(self.load_s)
        steps = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        if isinstance(steps[0], PenstockError):
            raise type(steps[0])(steps[0].message) if steps[0].retry_after_s is None else steps[0]
        ticket = Ticket(call.active_requests, self)
        self._task = asyncio.ensure_future(self._play(ticket, call.active_requests[0], steps))
        return ticket

    async def _play(self, ticket: Ticket, active: Any, steps: list[Step]) -> None:
        owner = ticket.sequences[active.submits[0].id]
        for place, step in enumerate(steps):
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, PenstockError):
                owner.ticket.fail(step)
                return
            else:
                finish = FinishReason.END if place == len(steps) - 1 else None
                chunk = Chunk(0, step, [0], finish=finish)
                active.add(chunk)
                owner.ticket.add(0, chunk)

    def load(self) -> Load:
        return Load()

    def cancel(self, ticket: Ticket) -> None:
        self.cancelled.append(ticket)
        self._task.cancel()

    def end_all(self, why: str) -> None: ...

    def close(self) -> None: ...


def busy(retry_after_s: float) -> UpstreamBusy:
    error = UpstreamBusy("busy")
    error.retry_after_s = retry_after_s
    return error


def request(**fields: Any) -> Request:
    params = SamplingParams(**fields.pop("params", {}))
    return Request(id="r", params=params, messages=[{"role": "user", "content": "Hi"}], **fields)


class World:
    """A gateway over fake models, in the running loop."""

    def __init__(self, *models: FakeModel, chain: Sequence[ChainLink] = (), **plan: Any) -> None:
        self.models = {model.card.name: model for model in models}
        self.events: list[events.Event] = []
        self.start = now()
        self.router = Router("load", clock=now)
        links = list(chain) or [ChainLink(model.card.name) for model in models[1:]]
        self.gateway = Gateway(
            self.router,
            self.find,
            {models[0].card.name: links},
            RetryPlan(**plan),
            emit=self.events.append,
            clock=now,
            draw=lambda: 1.0,
        )

    def find(self, name: str) -> Any:
        if name not in self.models:
            raise ModelNotFound(name)
        return self.models[name]

    async def ask(self, model: Any = None, **fields: Any) -> Ticket:
        """A request whose answer is not streamed."""
        ticket = await self.gateway.submit(model or next(iter(self.models.values())), [request(**fields)])
        await ticket.finished()
        self.gateway.finish(ticket)
        return ticket

    @property
    def elapsed(self) -> float:
        return now() - self.start


def test(main: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test in virtual time."""

    def run() -> None:
        run_virtual(main())

    run.__name__ = main.__name__
    run.__doc__ = main.__doc__
    return run


test.__test__ = False  # type: ignore[attr-defined]


def text(ticket: Ticket) -> str:
    assert ticket.error is None, ticket.error
    return ticket.active_requests[0].completion().text


@test
async def test_the_first_model_answers_while_it_can() -> None:
    big, small = FakeModel("big", ["Hello"]), FakeModel("small", ["Hi"])
    ticket = await World(big, small).ask()
    assert text(ticket) == "Hello"
    assert small.calls == []
    assert ticket.call is not None
    assert ticket.call.route.header() == ""


@pytest.mark.parametrize(
    "error",
    [QueueFull("full"), EngineDied("died"), UpstreamFailed("502"), UpstreamTimeout("slow"), UpstreamBusy("429")],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_failure_before_the_first_output_goes_to_the_next_model_at_once(error: PenstockError, later: bool) -> None:
    async def main() -> None:
        big, small = FakeModel("big", [1.0, error] if later else [error]), FakeModel("small", ["Hi"])
        world = World(big, small)
        ticket = await world.ask()
        assert text(ticket) == "Hi"
        assert world.elapsed == pytest.approx(1.0 if later else 0.0)
        assert ticket.model is small
        assert ticket.deployment is small
        assert ticket.active_requests[0].warnings == (f"answered by small after big failed ({error.code})",)
        assert ticket.call is not None
        assert f"failed: {error.code}" in ticket.call.route.header()
        assert [type(event) for event in world.events].count(events.AttemptFailed) == 1
        assert list(world.gateway.fallbacks.values()) == [1]

    run_virtual(main())


@test
async def test_an_answer_that_is_not_streamed_may_start_again_in_the_middle() -> None:
    big, small = FakeModel("big", ["Hel", UpstreamFailed("broke off")]), FakeModel("small", ["Hi"])
    assert text(await World(big, small).ask()) == "Hi"


@test
async def test_nothing_is_retried_once_the_client_has_seen_output() -> None:
    big, small = FakeModel("big", ["Hel", 1.0, UpstreamFailed("broke off")]), FakeModel("small", ["Hi"])
    world = World(big, small)
    ticket = await world.gateway.submit(big, [request()])
    assert [chunk.text for _, chunk in await ticket.take()] == ["Hel"]
    await asyncio.sleep(2.0)
    assert isinstance(ticket.error, UpstreamFailed)
    assert small.calls == []
    assert ticket.recovery is None


@test
async def test_a_stream_that_has_not_begun_goes_to_the_next_model() -> None:
    big, small = FakeModel("big", [1.0, UpstreamFailed("broke off")]), FakeModel("small", ["Hi"])
    ticket = await World(big, small).gateway.submit(big, [request()])
    assert [chunk.text for _, chunk in await ticket.take()] == ["Hi"]
    assert ticket.done


@test
async def test_an_invalid_request_is_not_retried() -> None:
    big, small = FakeModel("big", ["Hello"]), FakeModel("small", ["Hi"])
    big.invalid = InvalidRequest("no", param="top_k")
    with pytest.raises(InvalidRequest):
        await World(big, small).ask()
    assert small.calls == []


@test
async def test_what_the_upstream_rejects_is_not_retried() -> None:
    big, small = FakeModel("big", [1.0, InvalidRequest("no")]), FakeModel("small", ["Hi"])
    ticket = await World(big, small).ask()
    assert isinstance(ticket.error, InvalidRequest)
    assert small.calls == []


@test
async def test_a_model_of_the_chain_that_cannot_serve_the_request_is_passed_over() -> None:
    big, small, last = FakeModel("big", [UpstreamFailed("502")]), FakeModel("small", ["Hi"]), FakeModel("last", ["Yo"])
    small.invalid = InvalidRequest("no tools", param="tools")
    assert text(await World(big, small, last).ask()) == "Yo"


@test
async def test_rounds_are_repeated_with_growing_pauses_then_the_first_error_is_told() -> None:
    big, small = FakeModel("big", [UpstreamFailed("first")]), FakeModel("small", [QueueFull("second")])
    world = World(big, small, rounds=2)
    with pytest.raises(UpstreamFailed) as caught:
        await world.ask()
    assert [at - world.start for at, _ in big.calls] == pytest.approx([0.0, 0.25, 0.75])
    assert len(small.calls) == 3
    assert caught.value.message == "first; then failed: small (queue_full), big (upstream_failed)"


@test
async def test_retry_after_is_honoured_when_there_is_no_other_model() -> None:
    big = FakeModel("big", [busy(3.0)], ["Hello"])
    world = World(big)
    assert text(await world.ask()) == "Hello"
    assert world.elapsed == pytest.approx(3.0)


@test
async def test_a_retry_after_beyond_the_deadline_is_not_waited_for() -> None:
    world = World(FakeModel("big", [busy(30.0)]), deadline_s=10.0)
    with pytest.raises(UpstreamBusy) as caught:
        await world.ask()
    assert world.elapsed == 0.0
    assert caught.value.retry_after_s == 30.0


@test
async def test_the_deadline_ends_an_attempt_that_gives_nothing() -> None:
    big = FakeModel("big", [100.0, "too late"])
    world = World(big, deadline_s=10.0, rounds=5)
    ticket = await world.ask()
    assert isinstance(ticket.error, UpstreamTimeout)
    assert world.elapsed == pytest.approx(10.0)
    assert len(big.cancelled) == 1, "the deployment does not go on with it"


@test
async def test_the_deadline_counts_over_all_attempts() -> None:
    big, small = FakeModel("big", [6.0, UpstreamFailed("502")]), FakeModel("small", [6.0, "too late"])
    world = World(big, small, deadline_s=10.0)
    ticket = await world.ask()
    assert isinstance(ticket.error, PenstockError)
    assert world.elapsed == pytest.approx(10.0)


@test
async def test_a_slow_first_model_is_left_for_the_next() -> None:
    big, small = FakeModel("big", [100.0, "too late"]), FakeModel("small", [5.0, "Hi"])
    world = World(big, small, first_token_s=2.0)
    assert text(await world.ask()) == "Hi"
    assert world.elapsed == pytest.approx(7.0), "the last of the chain has until the deadline"
    assert len(big.cancelled) == 1


@test
async def test_a_model_that_takes_long_to_load_is_left_for_the_next() -> None:
    big, small = FakeModel("big", ["too late"], remote=False), FakeModel("small", ["Hi"])
    big.load_s = 100.0
    world = World(big, small, first_token_s=2.0)
    ticket = await world.ask()
    assert text(ticket) == "Hi"
    assert world.elapsed == pytest.approx(2.0)
    assert ticket.call is not None
    assert [(one.name, one.code) for one in ticket.call.route.failures] == [("big", "upstream_timeout")]
    assert world.router.track("big/0").failures == 0, "its deployment has failed at nothing"


@test
async def test_the_deadline_counts_while_a_model_is_loaded() -> None:
    big, small = FakeModel("big", ["too late"], remote=False), FakeModel("small", ["too late"], remote=False)
    big.load_s = small.load_s = 100.0
    world = World(big, small, deadline_s=10.0, first_token_s=4.0)
    with pytest.raises(UpstreamTimeout) as caught:
        await world.ask()
    assert caught.value.message == "big was not ready within 4 s; then failed: small (upstream_timeout)"
    assert world.elapsed == pytest.approx(10.0)


@test
async def test_a_model_that_does_not_fit_into_memory_is_replaced() -> None:
    big, small = FakeModel("big", [OutOfMemory("no room")], remote=False), FakeModel("small", ["Hi"])
    assert text(await World(big, small).ask()) == "Hi"


@test
async def test_output_in_time_stops_the_clock() -> None:
    big, small = FakeModel("big", [1.0, "Hel", 100.0, "lo"]), FakeModel("small", ["Hi"])
    assert text(await World(big, small, first_token_s=2.0, deadline_s=10.0).ask()) == "Hello"
    ticket = await World(big, small, first_token_s=2.0, deadline_s=10.0).gateway.submit(big, [request()])
    assert len(await ticket.take()) == 1
    assert ticket.recovery is None
    assert [chunk.text for _, chunk in await ticket.take()] == ["lo"]


@test
async def test_a_chain_can_shorten_the_output() -> None:
    big, small = FakeModel("big", [QueueFull("full")]), FakeModel("small", ["Hi"])
    world = World(big, small, chain=[ChainLink("small", max_tokens=64)])
    ticket = await world.ask(params={"max_tokens": 500, "min_tokens": 100})
    params = small.calls[0][1].requests[0].params
    assert (params.max_tokens, params.min_tokens) == (64, 64)
    assert ticket.active_requests[0].warnings == ("answered by small after big failed (queue_full), at most 64 tokens",)
    await world.ask(params={"max_tokens": 5})
    assert small.calls[1][1].requests[0].params.max_tokens == 5


@test
async def test_what_one_model_recommends_is_not_for_another() -> None:
    big, small = FakeModel("big", [QueueFull("full")]), FakeModel("small", ["Hi"])
    big.sampling, small.sampling = {"temperature": 0.6, "top_k": 20}, {"temperature": 0.7, "min_p": 0.1}
    await World(big, small).ask(params={"temperature": 0.6, "top_k": 20, "top_p": 0.9})
    params = small.calls[0][1].requests[0].params
    assert (params.temperature, params.top_k, params.min_p, params.top_p) == (0.7, 0, 0.1, 0.9)
    await World(big, small).ask(params={"temperature": 0.1, "top_k": 5, "min_p": 0.2})
    params = small.calls[1][1].requests[0].params
    assert (params.temperature, params.top_k, params.min_p) == (0.1, 5, 0.2)


@test
async def test_a_model_of_the_chain_that_does_not_exist_is_passed_over() -> None:
    big, small = FakeModel("big", [QueueFull("full")]), FakeModel("small", ["Hi"])
    assert text(await World(big, small, chain=[ChainLink("gone"), ChainLink("small")]).ask()) == "Hi"


@test
async def test_attempts_have_ids_of_their_own() -> None:
    """A deployment may get the same request again before it has let go of the first attempt."""
    big = FakeModel("big", [UpstreamFailed("502")], ["Hello"])
    await World(big).ask()
    ids = [call.active_requests[0].submits[0].id for _, call in big.calls]
    assert ids == ["r/0", "r-r1/0"]
    assert {events.http_request_id(name.partition("/")[0]) for name in ids} == {"r"}


@test
async def test_a_client_that_leaves_during_a_pause_leaves_nothing_behind() -> None:
    big = FakeModel("big", [UpstreamFailed("502")])
    world = World(big, rounds=50, deadline_s=None)
    asking = asyncio.ensure_future(world.ask())
    await asyncio.sleep(5.0)
    asking.cancel()
    attempts = len(big.calls)
    await asyncio.sleep(60.0)
    assert len(big.calls) == attempts


# --- the circuit breaker at work


@test
async def test_a_model_that_keeps_failing_is_not_asked_for_a_while_and_then_probed() -> None:
    big = FakeModel("big", *[[UpstreamFailed("502")]] * MIN_FAILURES, ["Hello"])
    small = FakeModel("small", ["Hi"])
    world = World(big, small)
    for _ in range(MIN_FAILURES + 3):
        assert text(await world.ask()) == "Hi"
    assert len(big.calls) == MIN_FAILURES
    breaker = world.router.track("big/0").breaker
    assert breaker.state is BreakerState.OPEN
    await asyncio.sleep(breaker.wait_s)
    assert text(await world.ask()) == "Hello"
    assert breaker.state is BreakerState.CLOSED


@test
async def test_without_another_model_an_open_circuit_is_told_with_its_time() -> None:
    big = FakeModel("big", [UpstreamFailed("502")])
    world = World(big, rounds=0)
    for _ in range(MIN_FAILURES):
        with pytest.raises(UpstreamFailed):
            await world.ask()
    with pytest.raises(UpstreamFailed, match=r"circuit open for 5\.0 s") as caught:
        await world.ask()
    assert caught.value.retry_after_s == pytest.approx(5.0)
    assert len(big.calls) == MIN_FAILURES


@test
async def test_a_pause_that_an_upstream_asked_for_is_told_to_all_as_it_told_the_first() -> None:
    big = FakeModel("big", [busy(30.0)])
    world = World(big, rounds=0)
    for waited in (0.0, 10.0):
        await asyncio.sleep(waited)
        with pytest.raises(UpstreamBusy) as caught:
            await world.ask()
        assert caught.value.retry_after_s == pytest.approx(30.0 - waited)
    assert len(big.calls) == 1


@test
async def test_each_failure_is_counted_once() -> None:
    big = FakeModel("big", [1.0, UpstreamFailed("502")])
    world = World(big, rounds=1)
    ticket = await world.ask()
    assert isinstance(ticket.error, UpstreamFailed)
    assert world.router.track("big/0").failures == len(big.calls) == 2


@test
async def test_a_full_queue_opens_no_circuit() -> None:
    big, small = FakeModel("big", [QueueFull("full")]), FakeModel("small", ["Hi"])
    world = World(big, small)
    for _ in range(3 * MIN_FAILURES):
        await world.ask()
    assert world.router.track("big/0").breaker.state is BreakerState.CLOSED


# --- routes


def route(world: World, policy: str) -> RouteModel:
    return RouteModel("auto", list(world.models), policy, world.find, world.router)


@test
async def test_auto_takes_the_small_model_for_a_simple_request_and_the_large_for_a_hard_one() -> None:
    small, big = FakeModel("small", ["Hi"]), FakeModel("big", ["Hello"])
    world = World(small, big, chain=[ChainLink("none")])
    auto = route(world, "size")
    ticket = await world.ask(auto)
    assert text(ticket) == "Hi"
    assert ticket.call is not None
    assert ticket.call.route.header().startswith("small by size: no signal of a hard request; not big")
    ticket = await world.ask(auto, reasoning_effort="none", params={"max_tokens": 5000})
    assert text(ticket) == "Hello"
    assert [event.decisions for event in world.events if isinstance(event, events.Routed)][-1][0].chosen == "big"


@test
async def test_auto_goes_to_a_larger_model_if_the_prompt_does_not_fit() -> None:
    small, big = FakeModel("small", ["Hi"]), FakeModel("big", ["Hello"])
    small.invalid = ContextOverflow("too long", param="messages")
    world = World(small, big, chain=[ChainLink("none")])
    assert text(await world.ask(route(world, "size"))) == "Hello"


@test
async def test_a_route_falls_back_to_its_other_models() -> None:
    a, b = FakeModel("a", [UpstreamFailed("502")]), FakeModel("b", ["Hi"])
    world = World(a, b, chain=[ChainLink("none")])
    assert text(await world.ask(route(world, "name"))) == "Hi"


@test
async def test_a_route_without_models_is_an_error() -> None:
    world = World(FakeModel("a", ["Hi"]))
    with pytest.raises(ModelNotFound):
        await world.ask(RouteModel("auto", ["x", "y"], "size", world.find, world.router))


@test
async def test_helper_requests_end_with_the_request_that_needs_them() -> None:
    model = FakeModel("m", [3600.0, "late"])
    world = World(model)
    asked = asyncio.ensure_future(world.gateway._run_helper(world.models["m"], [request()], None))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    assert model.cancelled == []
    asked.cancel()
    await asyncio.wait({asked})
    assert asked.cancelled()
    assert len(model.cancelled) == 1
