"""A ticket whose attempt failed goes on with another, and nothing of the first reaches the client; nothing
of either stays when the client has left."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from penstock.deployment.dispatch import Dispatcher
from penstock.deployment.ticket import Ticket
from penstock.errors import EngineDied
from penstock.flow import Cancel, Delta, FinishReason, SamplingParams, Submit
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream, NoText


def active(name: str, choices: int = 1) -> ActiveRequest:
    params = SamplingParams(n=choices, max_tokens=4)
    submits = [
        Submit(
            id=f"{name}/{place}", tokens=[1, 2, 3], params=params, seed=0, max_output=4, choice=place, number=place + 1
        )
        for place in range(choices)
    ]
    return ActiveRequest(name, submits, lambda index: ChoiceStream(index, params, NoText()))


class Attempts:
    """Gives a ticket one other attempt."""

    def __init__(self, fresh: Ticket, dispatcher: Dispatcher) -> None:
        self.fresh, self.dispatcher, self.closed = fresh, dispatcher, False

    async def recover(self, ticket: Ticket) -> bool:
        self.abandoned = ticket.detach()
        ticket.adopt(self.fresh)
        # What the first deployment still sends, and the answer of the second.
        self.dispatcher.deliver(Delta(id="r/1", tokens=[9]))
        self.dispatcher.deliver(Delta(id="r/1", tokens=[], finish=FinishReason.CANCELLED))
        self.dispatcher.deliver(Delta(id="r-r1/0", tokens=[7], finish=FinishReason.LENGTH))
        self.dispatcher.flush()
        return True

    def close(self) -> None:
        self.closed = True


def run(streamed: bool) -> tuple[Ticket, Attempts, list[int]]:
    async def main() -> tuple[Ticket, Attempts, list[int]]:
        cancelled: list[Cancel] = []
        dispatcher = Dispatcher(cancelled.append)
        ticket, fresh = Ticket([active("r", 2)]), Ticket([active("r-r1")])
        dispatcher.add(ticket)
        dispatcher.add(fresh)
        attempts = Attempts(fresh, dispatcher)
        ticket.recovery = attempts
        died = Delta(id="r/0", finish=FinishReason.ERROR, error="died", code=EngineDied.code)
        asyncio.get_running_loop().call_soon(lambda: (dispatcher.deliver(died), dispatcher.flush()))
        tokens: list[int] = []
        if streamed:
            while chunks := await ticket.take():
                tokens += [token for _, chunk in chunks for token in chunk.tokens]
        else:
            await ticket.finished()
            tokens = ticket.active_requests[0].choices[0].tokens
        assert not dispatcher.sequences, "every sequence has ended"
        return ticket, attempts, tokens

    return asyncio.run(main())


def test_a_stream_that_has_not_begun_shows_only_the_second_attempt() -> None:
    ticket, attempts, tokens = run(streamed=True)
    assert tokens == [7]
    assert (ticket.done, ticket.error, ticket.taken) == (True, None, True)
    assert attempts.abandoned.done
    assert attempts.closed
    assert ticket.recovery is None


def test_a_whole_answer_is_that_of_the_second_attempt() -> None:
    ticket, attempts, tokens = run(streamed=False)
    assert tokens == [7]
    assert ticket.error is None
    assert attempts.closed


def test_tokens_that_are_cached_are_not_pending() -> None:
    ticket = Ticket([active("r", 2), active("s")], cached_tokens=2)
    assert [one.pending_tokens for one in ticket.sequences.values()] == [1, 1, 3]


@pytest.mark.parametrize("left_first", [True, False])
def test_a_ticket_that_is_done_is_freed_without_the_garbage_collector(left_first: bool) -> None:
    ticket = Ticket([active("r")])
    request = weakref.ref(ticket.active_requests[0])
    gc.disable()
    try:
        if left_first:
            ticket.leave()
        ticket.push(Delta(id="r/0", tokens=[5], finish=FinishReason.LENGTH))
        if not left_first:
            ticket.leave()
        del ticket
        assert request() is None
    finally:
        gc.enable()
