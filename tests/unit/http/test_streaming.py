"""Streams as ASGI sees them, where no real client can make the case."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from penstock.deployment.ticket import Ticket
from penstock.errors import StorageUnavailable
from penstock.flow import CallDelta, Chunk, Completion, Delta, FinishReason, SamplingParams, Submit, TokenLogprobs
from penstock.http.direct_stream import WRITES_PER_EVENT
from penstock.http.error_body import RenderedError
from penstock.http.protocol import BODY_EXTENSION
from penstock.http.response_store import MemoryResponseStore, NewResponse, StoredResponse
from penstock.http.service import Service
from penstock.http.sse import Event, NamedEvent, Plain
from penstock.http.streaming import PORTION, EventStream, FullResponse, merge_chunks
from penstock.observe import events
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream

SCOPE = {"type": "http", "path": "/v1/chat/completions", "headers": [], "state": {"request_id": "r"}}
START, BODY = "http.response.start", "http.response.body"


class Letters:
    """Token ids are characters."""

    fixed_texts = None
    holds_text = False

    def push(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return ""


class Writer(Plain):
    """Writes what it is given, in words."""

    def __init__(self, *, breaks_at: str | None = None) -> None:
        self.breaks_at = breaks_at

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[bytes]:
        return [f"first {prompt}.{choice}".encode()]

    def chunk(self, prompt: int, chunk: Chunk) -> list[bytes]:
        if self.breaks_at is not None and self.breaks_at in chunk.text:
            raise KeyError("secret")
        return [f"{prompt}.{chunk.choice} {chunk.text}".encode()]

    def last(self, completions: Sequence[Completion]) -> list[bytes]:
        return [b"last"]

    def full_response(self, completions: Sequence[Completion]) -> bytes:
        return b""


class FakeDesk:
    stall_s = 0.05
    emit = None

    def __init__(self) -> None:
        self.finished: list[Ticket] = []
        self.at: float | None = None

    def finish(self, ticket: Ticket, at: float | None = None) -> None:
        self.finished.append(ticket)
        self.at = at


def active(choices: int = 1) -> ActiveRequest:
    params = SamplingParams(n=choices)
    submits = [Submit(f"s/{choice}", [1], params, 0, 99, choice) for choice in range(choices)]
    return ActiveRequest("s", submits, lambda choice: ChoiceStream(choice, params, Letters()))


def news(text: str, choice: int = 0, finish: FinishReason | None = None, **more: Any) -> Delta:
    return Delta(id=f"s/{choice}", tokens=[ord(letter) for letter in text], finish=finish, **more)


def stream(
    deltas: list[Delta], writer: Writer, *, choices: int = 1, send: Callable[[dict[str, Any]], Any] | None = None
) -> tuple[list[dict[str, Any]], FakeDesk]:
    """What is sent when these have come, and the service."""
    sent: list[dict[str, Any]] = []
    service = FakeDesk()

    async def play() -> None:
        ticket = Ticket([active(choices)])
        for delta in deltas:
            ticket.push(delta)

        async def keep(message: Any) -> None:
            if send is not None:
                await send(message)
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        await EventStream(cast(Service, service), ticket, writer)(SCOPE, receive, keep)
        assert service.finished == [ticket]

    asyncio.run(play())
    return sent, service


def test_a_client_that_keeps_up_gets_each_token_by_itself() -> None:
    """The engine is as quick as its client here: a token comes when the one before has been sent."""
    sent: list[bytes] = []

    async def play() -> None:
        ticket = Ticket([active()])
        rest = iter([*map(news, "wxy"), news("z", 0, FinishReason.LENGTH)])
        ticket.push(next(rest))

        async def send(message: Any) -> None:
            if message["type"] == BODY:
                sent.append(message["body"])
                if delta := next(rest, None):
                    ticket.push(delta)

        async def receive() -> Any:
            await asyncio.Event().wait()

        await EventStream(cast(Service, FakeDesk()), ticket, Writer())(SCOPE, receive, send)

    asyncio.run(play())
    events = [b"first 0.0\n\ndata: 0.0 w", b"0.0 x", b"0.0 y", b"0.0 z", b"last\n\ndata: [DONE]"]
    assert sent == [b"data: " + event + b"\n\n" for event in events]


def test_a_stream_is_over_when_its_last_byte_is_written_whatever_the_loop_does_next() -> None:
    next_turn: list[float] = []

    async def send(message: Any) -> None:
        if message["type"] == BODY and not message["more_body"]:
            asyncio.get_running_loop().call_soon(lambda: next_turn.append(time.monotonic()))

    _, service = stream([news("a", 0, FinishReason.LENGTH)], Writer(), send=send)
    assert service.at is not None
    assert service.at <= next_turn[0]


def test_what_has_piled_up_is_one_chunk_for_each_choice() -> None:
    deltas = [news("a"), news("x", 1), news("b"), news("y", 1, FinishReason.END), news("c", 0, FinishReason.LENGTH)]
    sent, _ = stream(deltas, Writer(), choices=2)
    assert [message["type"] for message in sent] == [START, BODY, BODY]
    told = "first 0.0", "0.0 abc", "first 0.1", "0.1 x"  # the token that ended the second is none of its text
    assert sent[1]["body"] == "".join(f"data: {text}\n\n" for text in told).encode()
    assert (sent[2]["body"], sent[2]["more_body"]) == (b"data: last\n\ndata: [DONE]\n\n", False)


def test_a_large_pile_is_sent_in_portions() -> None:
    deltas = [news(letter, choice) for letter in "ab" * PORTION for choice in (0, 1)]
    deltas += [news("z", choice, FinishReason.LENGTH) for choice in (0, 1)]
    sent, _ = stream(deltas, Writer(), choices=2)
    bodies = [message["body"].decode() for message in sent if message["type"] == BODY]
    for choice in "01":
        told = [line.rpartition(" ")[2] for body in bodies for line in body.split("\n") if f"data: 0.{choice} " in line]
        assert list(map(len, told)) == [PORTION, PORTION, 1]
        assert "".join(told) == "ab" * PORTION + "z"
    assert max(map(len, bodies)) < 2 * PORTION


def test_merging_keeps_the_log_probabilities_and_the_end() -> None:
    first, second = TokenLogprobs(1, -1.0, 1, []), TokenLogprobs(2, -2.0, 1, [])
    chunks = [
        (0, Chunk(0, "a", [1], [first])),
        (0, Chunk(1, "x", [9])),
        (0, Chunk(0, "b", [2], [second], FinishReason.STOP_STRING, "c")),
    ]
    assert merge_chunks(chunks) == [
        (0, Chunk(0, "ab", [1, 2], [first, second], FinishReason.STOP_STRING, "c")),
        (0, Chunk(1, "x", [9])),
    ]


def test_merging_keeps_thoughts_and_calls() -> None:
    first, second = CallDelta(index=0, id="c", name="f"), CallDelta(index=0, arguments="{}")
    chunks = [(0, Chunk(0, "", [1], reasoning="h")), (0, Chunk(0, "a", [2], reasoning="m", calls=(first,)))]
    chunks.append((0, Chunk(0, "", [3], finish=FinishReason.END, calls=(second,))))
    assert merge_chunks(chunks) == [
        (0, Chunk(0, "a", [1, 2, 3], finish=FinishReason.END, reasoning="hm", calls=(first, second)))
    ]


class NamedWriter(Writer):
    """Whose events have names, and whose streams end as they do."""

    end: Sequence[Event] = ()

    def last(self, completions: Sequence[Completion]) -> list[Event]:  # type: ignore[override]
        return [NamedEvent("stop", b"{}")]

    def error_events(self, told: RenderedError) -> list[Event]:
        return [NamedEvent("error", told.message.encode())]


def test_events_with_names() -> None:
    sent, _ = stream([news("a", 0, FinishReason.LENGTH)], NamedWriter())
    assert sent[2]["body"] == b"event: stop\ndata: {}\n\n"


def test_a_stream_breaks_off_as_its_api_has_it() -> None:
    sent, _ = stream([news("oops", 0, FinishReason.LENGTH)], NamedWriter(breaks_at="oops"))
    assert sent[1]["body"].startswith(b"event: error\ndata: internal error; ")


def test_a_mistake_of_ours_in_the_middle_ends_in_an_error_event() -> None:
    """And the client is told nothing of what is inside."""
    sent, _ = stream([news("oops", 0, FinishReason.LENGTH)], Writer(breaks_at="oops"))
    events = b"".join(message.get("body", b"") for message in sent)
    assert events.startswith(b'data: {"error":{')
    assert b"internal_error" in events
    assert b"secret" not in events
    assert b"[DONE]" not in events
    assert not sent[-1]["more_body"]


def test_a_failure_before_the_first_token_is_a_status() -> None:
    sent, _ = stream([news("", 0, FinishReason.ERROR, error="full", code="queue_full")], Writer())
    assert sent[0]["status"] == 429


@pytest.mark.parametrize("stuck", [1, 2], ids=["chunks", "end"])
def test_a_client_that_does_not_read(stuck: int) -> None:
    """Wherever it stops, the stream does not wait for ever."""
    count = 0

    async def send(message: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == stuck + 1:
            await asyncio.Event().wait()

    sent, _ = stream([news("a", 0, FinishReason.LENGTH)], Writer(), send=send)
    assert len(sent) == stuck


@pytest.mark.parametrize("streamed", [True, False])
def test_what_was_accepted_without_effect_is_told_in_a_header(streamed: bool) -> None:
    sent: list[dict[str, Any]] = []

    async def play() -> None:
        warned = active()
        warned.warnings = ("the field x is ignored",)
        ticket, service = Ticket([warned]), cast(Service, FakeDesk())
        ticket.push(news("a", 0, FinishReason.END))

        async def keep(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        answer = EventStream(service, ticket, Writer()) if streamed else FullResponse(service, ticket, lambda _: b"{}")
        await answer(SCOPE, receive, keep)

    asyncio.run(play())
    assert dict(sent[0]["headers"])[b"x-penstock-warnings"] == b"the field x is ignored"


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_is_stored_before_its_client_gets_the_end_or_fails(streamed: bool) -> None:
    async def play(*, fails: bool) -> bytes:
        store, sent = MemoryResponseStore(), list[dict[str, Any]]()
        new = NewResponse(store, "alice")
        new.note("a", StoredResponse(b"{}", b"[]"))
        ticket, service = Ticket([active()]), cast(Service, FakeDesk())
        ticket.push(news("a", 0, FinishReason.END))

        async def away(*_: object) -> None:
            raise StorageUnavailable("the database is away")

        if fails:
            store.put = away  # type: ignore[method-assign]

        async def keep(message: Any) -> None:
            if message["type"] == BODY and not message.get("more_body", False):
                assert len(store) == (not fails)
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        if streamed:
            await EventStream(service, ticket, Writer(), stored=new)(SCOPE, receive, keep)
        else:
            await FullResponse(service, ticket, lambda _: b"{}", new)(SCOPE, receive, keep)
        return b"".join(message["body"] for message in sent if message["type"] == BODY)

    assert asyncio.run(play(fails=False)).endswith(b"[DONE]\n\n" if streamed else b"{}")
    if streamed:
        told = asyncio.run(play(fails=True))
        assert b"the database is away" in told
        assert b"data: last" not in told
    else:
        with pytest.raises(StorageUnavailable):  # for the error handlers, before anything is sent
            asyncio.run(play(fails=True))


class Body:
    """A connection past ASGI's layers; what goes either way is kept in one list."""

    def __init__(self) -> None:
        self.ready = True
        self.sent: list[tuple[str, bytes]] = []

    def write(self, data: bytes) -> None:
        self.sent.append(("direct", data))


class LedgerAccount:
    """Of a server with a ledger, whose commit takes until `written` is set."""

    durable = True
    first_output: float | None = None

    def __init__(self) -> None:
        self.written = asyncio.Event()

    async def settle(self, ticket: Ticket) -> None:
        await self.written.wait()

    def measure(self, ticket: Ticket) -> None: ...

    def leave(self, ticket: Ticket) -> None: ...

    def headers(self) -> dict[str, str]:
        return {}


def stream_directly(
    play: Callable[[Ticket, Body], Coroutine[None, None, None]],
    writer: Writer | None = None,
    *,
    choices: int = 1,
    account: LedgerAccount | None = None,
) -> tuple[list[tuple[str, bytes]], FakeDesk]:
    """What is written, and by which way, while `play` brings the news, as a replica does."""
    body, service = Body(), FakeDesk()

    async def main() -> None:
        ticket = Ticket([active(choices)])
        ticket.account = account

        async def send(message: Any) -> None:
            if message["type"] == BODY:
                body.sent.append(("send", message["body"]))

        async def receive() -> Any:
            await asyncio.Event().wait()

        scope = {**SCOPE, "extensions": {BODY_EXTENSION: body}}
        answering = asyncio.ensure_future(
            EventStream(cast(Service, service), ticket, writer or Writer())(scope, receive, send)
        )
        await play(ticket, body)
        await answering
        assert service.finished == [ticket]
        assert ticket.sink is None

    asyncio.run(main())
    return body.sent, service


async def settle() -> None:
    """Let the tasks do all that they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def bring(ticket: Ticket, *deltas: Delta) -> None:
    for delta in deltas:
        ticket.push(delta)
    ticket.flush()


def test_tokens_of_a_client_that_keeps_up_are_written_without_waking_a_task() -> None:
    async def play(ticket: Ticket, body: Body) -> None:
        await bring(ticket, news("a"))
        await settle()
        await bring(ticket, news("b"), news("c"))  # no task has a turn in between
        await bring(ticket, news("d"))
        assert [way for way, _ in body.sent] == ["send", "direct", "direct"]
        await bring(ticket, news("z", 0, FinishReason.LENGTH))

    sent, _ = stream_directly(play)
    assert sent == [
        ("send", b"data: first 0.0\n\ndata: 0.0 a\n\n"),
        ("direct", b"data: 0.0 b\n\ndata: 0.0 c\n\n"),  # one write of what came at once, an event for each
        ("direct", b"data: 0.0 d\n\n"),
        ("direct", b"data: 0.0 z\n\n"),
        ("send", b"data: last\n\ndata: [DONE]\n\n"),
    ]


@pytest.mark.parametrize("choices", [1, 2])
def test_the_last_chunk_waits_for_the_ledger_and_goes_out_with_the_end(choices: int) -> None:
    account = LedgerAccount()

    async def play(ticket: Ticket, body: Body) -> None:
        for choice in range(choices):
            await bring(ticket, news("a", choice))
        await settle()
        for choice in range(choices):
            await bring(ticket, news("b", choice))
        for choice in range(choices):
            await bring(ticket, news("z", choice, FinishReason.LENGTH))
        await settle()
        assert b"0.%d z" % (choices - 1) not in b"".join(data for _, data in body.sent)
        account.written.set()

    sent, _ = stream_directly(play, choices=choices, account=account)
    assert sent[-1] == ("send", b"data: 0.%d z\n\ndata: last\n\ndata: [DONE]\n\n" % (choices - 1))
    assert [way for way, _ in sent[:-1]] == ["send"] + ["direct"] * (len(sent) - 2)


def test_writes_of_the_direct_way_are_told_together_and_in_order() -> None:
    told: list[events.FlushedTokens | events.Flushed] = []

    async def play(ticket: Ticket, body: Body) -> None:
        await bring(ticket, news("a"))
        await settle()
        for _ in range(WRITES_PER_EVENT + 3):
            await bring(ticket, news("b"))
        assert [len(event.writes) // 2 for event in told if isinstance(event, events.FlushedTokens)] == [
            WRITES_PER_EVENT
        ]
        await bring(ticket, news("z", 0, FinishReason.LENGTH))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeDesk, "emit", staticmethod(told.append))
        sent, _ = stream_directly(play)
    sizes = [
        size
        for event in told
        for size in ([*event.writes[1::2]] if isinstance(event, events.FlushedTokens) else [event.num_bytes])
    ]
    assert sizes == [len(data) for _, data in sent]


def test_a_client_that_falls_behind_is_waited_for_and_nothing_overtakes() -> None:
    async def play(ticket: Ticket, body: Body) -> None:
        await bring(ticket, news("a"))
        await settle()
        body.ready = False
        await bring(ticket, news("b"))
        body.ready = True
        await bring(ticket, news("c"))  # what was left comes first, by the way that waits
        await settle()
        await bring(ticket, news("d"))
        await bring(ticket, news("z", 0, FinishReason.LENGTH))

    sent, _ = stream_directly(play)
    assert [(way, data) for way, data in sent[1:4]] == [
        ("send", b"data: 0.0 bc\n\n"),
        ("direct", b"data: 0.0 d\n\n"),
        ("direct", b"data: 0.0 z\n\n"),
    ]


def test_a_mistake_of_ours_on_the_direct_way_ends_in_an_error_event() -> None:
    async def play(ticket: Ticket, body: Body) -> None:
        await bring(ticket, news("a"))
        await settle()
        await bring(ticket, news("oops"))
        await settle()
        await bring(ticket, news("z", 0, FinishReason.LENGTH))

    sent, _ = stream_directly(play, Writer(breaks_at="oops"))
    assert [way for way, _ in sent] == ["send"] * 2
    assert b"internal_error" in sent[1][1]


def test_a_connection_that_cannot_be_written_to_is_a_matter_of_its_own_stream() -> None:
    """The replica calls for all streams in one turn."""

    async def play(ticket: Ticket, body: Body) -> None:
        def write(data: bytes) -> None:
            raise RuntimeError("the handler is closed")

        await bring(ticket, news("a"))
        await settle()
        body.write = write  # type: ignore[method-assign]
        await bring(ticket, news("b"))
        await settle()
        await bring(ticket, news("z", 0, FinishReason.LENGTH))

    sent, _ = stream_directly(play)
    assert b"internal_error" in sent[1][1]


def test_an_error_of_one_choice_ends_the_direct_way() -> None:
    async def play(ticket: Ticket, body: Body) -> None:
        await bring(ticket, news("a"), news("x", 1))
        await settle()
        await bring(ticket, news("b"), news("", 1, FinishReason.ERROR, error="it broke", code="internal_error"))
        await settle()
        await bring(ticket, news("z", 0, FinishReason.LENGTH))

    sent, _ = stream_directly(play, choices=2)
    assert [way for way, _ in sent] == ["send"] * 3
    assert b"internal_error" in sent[2][1]
    assert b"[DONE]" not in b"".join(data for _, data in sent)


def test_a_stream_without_a_last_chunk_tells_its_error() -> None:
    """The answer could not be read: there is nothing to show of it."""

    class Unreadable(Letters):
        def push(self, token: int) -> str:
            if token == ord("!"):
                raise ValueError
            return chr(token)

    async def play(ticket: Ticket, body: Body) -> None:
        ticket.active_requests[0].choices[0].decoder = Unreadable()
        await bring(ticket, news("a"))
        await settle()
        await bring(ticket, news("!"))
        await bring(ticket, news("", 0, FinishReason.CANCELLED))

    sent, _ = stream_directly(play)
    assert b"internal_error" in sent[1][1]


def test_an_answer_in_one_piece_wakes_no_task_before_its_end() -> None:
    async def play() -> int:
        ticket = Ticket([active()])
        waiting = asyncio.ensure_future(ticket.finished())
        await settle()
        for _ in range(3):
            await bring(ticket, news("a"))
            assert not ticket._changed.is_set()
        assert ticket.chunks == []
        await bring(ticket, news("z", 0, FinishReason.LENGTH))
        await waiting
        return len(ticket.active_requests[0].choices[0].tokens)

    assert asyncio.run(play()) == 4
