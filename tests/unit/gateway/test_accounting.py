"""One record per request, whatever became of it, before the client gets the end of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from helpers.usage_records import RememberingStore
from penstock.deployment.protocol import Call, ModelCard, Price
from penstock.deployment.ticket import Ticket
from penstock.errors import EngineDied, InvalidRequest, LedgerUnavailable, RateLimited
from penstock.flow import Delta, FinishReason, SamplingParams, Submit, Timings
from penstock.flow.identity import Source
from penstock.gateway.accounting import Accounting, RequestAccount, most
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.ledger import ledger as ledger_module
from penstock.gateway.ledger.ledger import Ledger
from penstock.gateway.limits.account import Account
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.reservation import Charge, Reservation
from penstock.observe import events
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream, NoText

PRICE = Price(1.0, 10.0, 0.5)
IDENTITY = Identity(tenant="acme", key="k1", tenant_limits=Limits(tokens_per_minute=1000))


class FakeModel:
    def __init__(self, price: Price | None = PRICE, *, remote: bool = False) -> None:
        self.card = ModelCard(name="m", price=price, remote=remote)


class FakeDeployment:
    source = Source("m", 2)
    name = "m/2"


class FakeLimiter:
    """Remembers what was reserved and settled."""

    def __init__(self, refuse_above: int | None = None) -> None:
        self.open: list[Reservation] = []
        self.settled: list[Charge] = []
        self._refuse_above = refuse_above

    async def reserve(self, identity: Identity, request: str, charge: Charge) -> Reservation:
        if self._refuse_above is not None and charge.tokens > self._refuse_above:
            raise RateLimited("too much")
        reservation = Reservation(
            id=str(len(self.open)), request=request, tenant=identity.tenant, key=identity.key, charge=charge
        )
        self.open.append(reservation)
        return reservation

    async def settle(self, reservation: Reservation, charge: Charge, *, never_began: bool = False) -> None:
        assert not (never_began and charge.tokens)
        if reservation in self.open:
            self.open.remove(reservation)
            self.settled.append(charge)

    async def start(self, history: Any) -> None: ...

    async def close(self) -> None: ...

    def headers(self, reservation: Reservation) -> dict[str, str]:
        return {"x-ratelimit-limit-tokens": "1000"}


class Books:
    def __init__(self, *, fail_open: bool = False, price: Price | None = PRICE) -> None:
        self.store = RememberingStore()
        self.limiter = FakeLimiter()
        self.events: list[Any] = []
        self.accounting = Accounting(
            Ledger(self.store), self.limiter, fail_open=fail_open, emit=self.events.append, clock=lambda: 1e9
        )
        self.model = FakeModel(price)

    async def dispatch(self, ticket: Ticket, line: str | None = None) -> RequestAccount:
        account = self.accounting.open(IDENTITY, "r", line)
        await account.reserve(self.model.card, Call([], ticket.active_requests))
        ticket.account, ticket.model, ticket.deployment = account, self.model, FakeDeployment()  # type: ignore[assignment]
        return account

    @property
    def charged(self) -> list[int]:
        return [one.microusd for one in self.events if isinstance(one, events.Charged)]

    @property
    def records(self) -> list[Any]:
        return list(self.store.records.values())


def run(play: Callable[[Books], Coroutine[Any, Any, None]], **options: Any) -> Books:
    async def main() -> Books:
        books = Books(**options)
        await play(books)
        await books.accounting.close()
        assert books.limiter.open == []  # no reservation is left
        return books

    return asyncio.run(main())


def make_ticket(prompts: int = 1, choices: int = 1, *, task: Any = "generate") -> Ticket:
    params = SamplingParams(n=choices, max_tokens=20)
    active_requests = []
    for prompt in range(prompts):
        submits = [
            Submit(f"r-{prompt}/{choice}", [1] * 10, params, 0, 20, choice, task=task) for choice in range(choices)
        ]
        active_requests.append(
            ActiveRequest(f"r-{prompt}", submits, lambda choice: ChoiceStream(choice, params, NoText()))
        )
    return Ticket(active_requests)


def push(ticket: Ticket, tokens: int, finish: FinishReason | None = None, name: str = "r-0/0", **more: Any) -> None:
    timings = Timings(0.0, 1.0, 2.0, 3.0) if finish is not None else None
    ticket.push(Delta(id=name, tokens=[7] * tokens, finish=finish, **{"timings": timings, **more}))


def test_a_whole_answer() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        assert account.headers() == {"x-ratelimit-limit-tokens": "1000"}
        push(ticket, 1, cached_tokens=4)
        push(ticket, 2, FinishReason.LENGTH)
        assert books.records == []
        await account.settle(ticket)
        (record,) = books.records
        assert (record.request, record.tenant, record.key, record.model, record.replica) == ("r", "acme", "k1", "m", 2)
        assert (record.input, record.cached, record.output, record.finish) == (10, 4, 3, "length")
        assert (record.microusd, record.saved_microusd) == (6 + 2 + 30, 2)
        assert ticket.active_requests[0].completion().cost_usd == 38e-6
        account.leave(ticket)
        ticket.leave()

    books = run(play)
    assert len(books.records) == 1
    assert books.limiter.settled == [Charge(13, 38)]
    assert books.charged == [38]
    assert books.accounting.totals.tokens == {
        ("acme", "m", "input"): 6, ("acme", "m", "cached"): 4, ("acme", "m", "output"): 3,
    }  # fmt: skip


@pytest.mark.parametrize(("price", "own"), [(PRICE, 40), (None, 0)])
def test_what_served_a_request_is_charged_to_its_key_and_part_of_its_cost(price: Price | None, own: int) -> None:
    async def play(books: Books) -> None:
        ticket, helper = make_ticket(), make_ticket()
        account = await books.dispatch(ticket)
        summary = account.for_helper("r.summary.1")
        await summary.reserve(ModelCard(name="m", price=PRICE), Call([], helper.active_requests))
        helper.model, helper.deployment = FakeModel(), FakeDeployment()  # type: ignore[assignment]
        push(helper, 2, FinishReason.END)
        await summary.settle(helper)
        assert helper.active_requests[0].cost_usd == 30e-6
        push(ticket, 3, FinishReason.END)
        await account.settle(ticket)
        assert ticket.active_requests[0].cost_usd == (30 + own) / 1e6

    books = run(play, price=price)
    assert [(one.request, one.key, one.microusd) for one in books.records] == [
        ("r.summary.1", "k1", 30),
        ("r", "k1", own),
    ]
    assert books.charged == [30 + own]  # one cost on the request's page


def test_several_prompts_and_choices_are_one_request() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket(prompts=2, choices=2)
        account = await books.dispatch(ticket)
        assert books.limiter.open[0].charge == Charge(20 + 80, 20 + 800, 20)
        for prompt in range(2):
            for choice in range(2):
                push(ticket, 3, FinishReason.END, f"r-{prompt}/{choice}")
        await account.settle(ticket)

    (record,) = run(play).records
    assert (record.input, record.output) == (20, 12)


def test_an_embedding_costs_its_input() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket(task="embed")
        account = await books.dispatch(ticket)
        push(ticket, 0, FinishReason.END)
        await account.settle(ticket)

    (record,) = run(play).records
    assert (record.input, record.output, record.microusd) == (10, 0, 10)


def test_a_client_that_disconnects_pays_for_what_had_come_and_for_the_prompt() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        push(ticket, 2, cached_tokens=4)
        account.leave(ticket)
        ticket.leave()
        assert books.records == []  # the engine has not let go of it
        push(ticket, 3)  # on its way when the client left
        push(ticket, 0, FinishReason.CANCELLED)

    books = run(play)
    (record,) = books.records
    assert (record.input, record.cached, record.output, record.finish) == (10, 4, 2, "cancelled")
    assert books.limiter.settled == [Charge(12, 28)]


def test_a_client_that_disconnects_before_its_prompt_was_begun_pays_nothing() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        account.leave(ticket)
        push(ticket, 0, FinishReason.CANCELLED, timings=Timings(0.0, None, None, 3.0))
        ticket.leave()

    books = run(play)
    (record,) = books.records
    assert (record.input, record.microusd, record.finish) == (0, 0, "cancelled")
    assert books.limiter.settled == [Charge()]


def test_an_error_before_the_client_has_seen_anything_costs_nothing() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        push(ticket, 2)
        push(ticket, 0, FinishReason.ERROR, error="died", code=EngineDied.code)
        await account.settle(ticket)

    (record,) = run(play).records
    assert (record.input, record.output, record.microusd, record.finish) == (0, 0, 0, "error")


def test_an_error_in_the_middle_of_a_stream_costs_what_had_come() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        push(ticket, 2)
        await ticket.take()
        push(ticket, 0, FinishReason.ERROR, error="died", code=EngineDied.code)
        await account.settle(ticket)

    (record,) = run(play).records
    assert (record.input, record.output, record.finish) == (10, 2, "error")


def test_a_line_of_a_batch_has_its_own_id_and_costs_something_only_with_an_answer() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket, "batch_1/7")
        push(ticket, 2)
        account.leave(ticket)  # the server stops
        push(ticket, 0, FinishReason.CANCELLED)
        ticket.leave()
        for _ in range(2):  # the second time after a restart
            ticket = make_ticket()
            account = await books.dispatch(ticket, "batch_1/7")
            push(ticket, 2, FinishReason.END)
            await account.settle(ticket)

    answered, cancelled = sorted(run(play).records, key=lambda one: one.request)
    assert (cancelled.request, cancelled.input, cancelled.output) == ("r", 0, 0)
    assert (answered.request, answered.input, answered.output) == ("batch_1/7", 10, 2)


def test_a_request_that_is_cancelled_while_its_record_is_written_is_recorded_and_settled() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        push(ticket, 2, FinishReason.END)
        settling = asyncio.create_task(account.settle(ticket))
        await asyncio.sleep(0)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling
        account.leave(ticket)
        ticket.leave()

    books = run(play)
    assert len(books.records) == len(books.limiter.settled) == 1


def test_a_ledger_that_cannot_be_written_ends_requests_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PROBE_S", 0.0)

    async def play(books: Books) -> None:
        books.store.away = OSError("disk full")
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        push(ticket, 2, FinishReason.END)
        with pytest.raises(LedgerUnavailable):
            await account.settle(ticket)
        await account.settle(ticket)  # before the error is sent
        with pytest.raises(LedgerUnavailable):
            await books.dispatch(make_ticket())
        books.store.away = None
        while not books.accounting.ledger.available:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        await (await books.dispatch(make_ticket())).release()

    books = run(play)
    assert books.records == []
    assert books.limiter.settled == [Charge(12, 30), Charge()]


def test_or_answers_go_out_and_their_records_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PROBE_S", 0.0)

    async def play(books: Books) -> None:
        books.store.away = OSError("disk full")
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        push(ticket, 2, FinishReason.END)
        await account.settle(ticket)
        assert books.accounting.ledger is not None
        assert books.accounting.ledger.backlog == 1
        books.store.away = None

    assert len(run(play, fail_open=True).records) == 1


def test_another_attempt_reserves_again_only_if_it_needs_more() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        cheap, dear = ModelCard(name="cheap", price=Price(0.1, 0.1)), ModelCard(name="dear", price=Price(5.0, 50.0))
        await account.reserve(cheap, Call([], ticket.active_requests))
        assert books.limiter.settled == []
        await account.reserve(dear, Call([], ticket.active_requests))
        assert books.limiter.settled == [Charge()]
        assert [one.charge for one in books.limiter.open] == [Charge(30, 1050, 10)]
        await account.release()

    run(play)


def test_an_attempt_that_reserves_again_is_no_second_request() -> None:
    limits = Limits(requests_per_minute=1)
    identity = Identity(tenant="acme", key="k", key_limits=limits, tenant_limits=limits)

    async def play() -> None:
        ticket, limiter = make_ticket(), LocalLimiter()
        account = Accounting(limiter=limiter).open(identity, "r")
        for price in (0.1, 5.0, 50.0):
            await account.reserve(ModelCard(name="m", price=Price(price, price)), Call([], ticket.active_requests))
            assert [one.requests for one in await limiter.use([Account("acme", "k"), Account("acme")])] == [1, 1]
        await account.release()
        assert (await limiter.use([Account("acme")]))[0].requests == 0

    asyncio.run(play())


def test_an_upstream_without_a_limit_of_its_output() -> None:
    params = SamplingParams(max_tokens=None)
    active = ActiveRequest("r", [Submit("r/0", [1] * 10, params, 0, 0)], lambda _: ChoiceStream(0, params, NoText()))
    call = Call([], [active])
    with pytest.raises(InvalidRequest, match="max_tokens is required"):
        most(ModelCard(name="up", remote=True), call, limited=True)
    assert most(ModelCard(name="up", remote=True), call, limited=False) == Charge(10, 0, 10)
    assert most(ModelCard(name="up", remote=True, context=4096), call, limited=True) == Charge(4106, 0, 10)


def test_a_model_without_a_price_shows_no_cost() -> None:
    async def play(books: Books) -> None:
        ticket = make_ticket()
        account = await books.dispatch(ticket)
        push(ticket, 1, FinishReason.END)
        await account.settle(ticket)
        assert ticket.active_requests[0].completion().cost_usd is None

    books = run(play, price=None)
    assert books.charged == []
    assert books.records[0].microusd == 0
