"""The short way of single tokens writes what the long way writes."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

from penstock.deployment.dispatch import Dispatcher
from penstock.deployment.ticket import Ticket
from penstock.flow import Cancel, Chunk, Completion, Delta, FinishReason, Frame, SamplingParams, Submit
from penstock.gateway.safety.choice_filter import RuleFilter
from penstock.gateway.safety.matcher import Matcher
from penstock.gateway.safety.rules import Rules
from penstock.http.protocol import BODY_EXTENSION
from penstock.http.service import Service
from penstock.http.sse import Plain, TextEvent
from penstock.http.streaming import EventStream
from penstock.observe import events
from penstock.settings import SafetyEntry
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream
from penstock.tokenize.detokenize import ByteStream

ASCII = {byte: chr(byte) for byte in range(128)}


class Writer(Plain):
    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[bytes]:
        return [b"first %d" % choice]

    def chunk(self, prompt: int, chunk: Chunk) -> list[bytes]:
        end = [b"end %d" % chunk.choice] if chunk.finish else []
        return ([self._event(chunk.choice, chunk.text)] if chunk.text else []) + end

    def text_event(self, prompt: int, choice: int) -> TextEvent:
        return TextEvent(lambda text: self._event(choice, text))

    def last(self, completions: list[Completion]) -> list[bytes]:  # type: ignore[override]
        return [choice.text.encode() for completion in completions for choice in completion.choices]

    def full_response(self, completions: list[Completion]) -> bytes:  # type: ignore[override]
        return b""

    def _event(self, choice: int, text: str) -> bytes:
        return msgspec.json.encode({"choice": choice, "text": text})


class Connection:
    """Of a client; what is sent goes into one text, whichever way it takes."""

    def __init__(self) -> None:
        self.ready = True
        self.sent = b""
        self.num_direct = 0

    def write(self, data: bytes) -> None:
        self.write_parts(b"", data, b"")

    def write_parts(self, head: bytes, middle: bytes, tail: bytes) -> int:
        assert self.ready
        self.num_direct += 1
        self.sent += head + middle + tail
        return len(head + middle + tail)


class Desk:
    def __init__(self) -> None:
        self.told: list[events.Event] = []
        self.emit = self.told.append
        self.stall_s = 5.0

    def finish(self, ticket: Ticket, at: float | None = None) -> None: ...


class Story:
    """A stream of as many choices, and an engine's frames for it."""

    def __init__(
        self, *, packed: bool, choices: int = 1, stop: tuple[str, ...] = (), rules: Matcher | None = None
    ) -> None:
        self.packed = packed
        params = SamplingParams(n=choices, stop=stop)
        submits = [Submit(f"r/{place}", [1], params, 0, 99, choice=place, number=place + 1) for place in range(choices)]
        streams = [
            ChoiceStream(
                place, params, ByteStream(lambda token: bytes([token]), [], drops_first_space=False, texts=ASCII)
            )
            for place in range(choices)
        ]
        active = ActiveRequest("r", submits, streams.__getitem__)
        if rules is not None:
            active.filter_output(lambda: RuleFilter(rules, None, lambda *hit: None))
        self.num_pushes = 0  # Deltas
        push, active.push = active.push, self.count_push  # type: ignore[method-assign]
        self.push = push
        self.ticket = Ticket([active])
        self.connection, self.desk = Connection(), Desk()
        self.cancelled: list[Cancel] = []
        self.dispatcher = Dispatcher(self.cancelled.append, emit=self.desk.emit)
        self.dispatcher.add(self.ticket)
        self.begun = [False] * choices

    def count_push(self, delta: Delta) -> tuple[Chunk | None, Cancel | None]:
        self.num_pushes += 1
        return self.push(delta)

    def frame(self, tokens: dict[int, bytes], finish: FinishReason | None = None) -> Frame:
        """Of a byte for each of these choices; `finish` ends them."""
        deltas = []
        for choice, text in tokens.items():
            number = choice + 1 if self.begun[choice] and len(text) == 1 else 0
            self.begun[choice] = True
            deltas.append(Delta(id=f"r/{choice}", tokens=[*text], number=number, finish=finish))
        return Frame(deltas).packed() if self.packed else Frame(deltas)

    def bring(self, *frames: Frame) -> None:
        for frame in frames:
            self.dispatcher.dispatch(frame, lambda delta: False)
        self.dispatcher.flush()

    def play(self, *turns: Callable[["Story"], None]) -> bytes:
        """What the client reads; between two turns all tasks do what they can."""

        async def main() -> None:
            async def send(message: Any) -> None:
                self.connection.sent += message.get("body", b"")
                self.connection.ready = True

            async def receive() -> Any:
                await asyncio.Event().wait()

            state = {"request_id": "r"}
            scope = {
                "type": "http",
                "path": "/",
                "headers": [],
                "state": state,
                "extensions": {BODY_EXTENSION: self.connection},
            }
            stream = EventStream(cast(Service, self.desk), self.ticket, Writer())
            answering = asyncio.ensure_future(stream(scope, receive, send))
            for turn in turns:
                turn(self)
                for _ in range(10):
                    await asyncio.sleep(0)
            await answering

        asyncio.run(main())
        return self.connection.sent


def both_ways(*turns: Callable[[Story], None], **options: Any) -> tuple[Story, Story]:
    """The same story with tokens packed and as Deltas: the client must read the same."""
    short, long = Story(packed=True, **options), Story(packed=False, **options)
    assert short.play(*turns) == long.play(*turns)
    assert [len(a.tokens) for a in short.ticket.active_requests[0].choices] == [
        len(a.tokens) for a in long.ticket.active_requests[0].choices
    ]
    return short, long


def test_plain_text_is_the_same_and_makes_no_deltas() -> None:
    turns = [lambda story, text=text: story.bring(story.frame({0: text})) for text in (b"a", b"b", b'"', b"\n")]
    end = lambda story: story.bring(story.frame({0: b"z"}, FinishReason.LENGTH))  # noqa: E731
    short, long = both_ways(*turns, end)
    assert b'{"choice":0,"text":"\\""}' in short.connection.sent
    assert short.connection.sent.endswith(b'data: ab"\nz\n\ndata: [DONE]\n\n')
    assert short.connection.num_direct == long.connection.num_direct == 4
    frames = [event for event in short.desk.told if isinstance(event, events.Delivered)]
    assert [[*event.numbers] for event in frames] == [[], [1], [1], [1], []]
    assert [len(event.deltas) for event in frames] == [1, 0, 0, 0, 1]


def test_several_frames_at_once_are_one_write() -> None:
    first = lambda story: story.bring(story.frame({0: b"a"}))  # noqa: E731
    many = lambda story: story.bring(*(story.frame({0: text}) for text in (b"b", b"c", b"d")))  # noqa: E731
    end = lambda story: story.bring(story.frame({0: b"z"}, FinishReason.LENGTH))  # noqa: E731
    short, _ = both_ways(first, many, end)
    assert short.connection.num_direct == 2


def test_half_characters_and_tokens_of_several_bytes_take_the_long_way_in_order() -> None:
    umlaut = "ü".encode()
    texts = (b"a", b"b", umlaut[:1], umlaut[1:], b"c", b"def", b"g")
    alone = [lambda story, text=text: story.bring(story.frame({0: text})) for text in texts]
    together = lambda story: story.bring(*(story.frame({0: text}) for text in texts))  # noqa: E731
    end = lambda story: story.bring(story.frame({0: b"z"}, FinishReason.LENGTH))  # noqa: E731
    short, _ = both_ways(*alone, together, end)
    assert short.connection.sent.endswith("data: abücdefgabücdefgz\n\ndata: [DONE]\n\n".encode())


def test_nothing_is_written_past_a_client_that_lags() -> None:
    def lag(story: Story) -> None:
        story.connection.ready = False
        story.bring(story.frame({0: b"b"}))
        story.bring(story.frame({0: b"c"}))

    first = lambda story: story.bring(story.frame({0: b"a"}))  # noqa: E731
    after = lambda story: story.bring(story.frame({0: b"d"}))  # noqa: E731
    end = lambda story: story.bring(story.frame({0: b"z"}, FinishReason.LENGTH))  # noqa: E731
    both_ways(first, lag, after, end)


def test_a_stop_string_is_found_in_packed_tokens() -> None:
    turns = [lambda story, text=text: story.bring(story.frame({0: text})) for text in (b"a", b"x", b"y", b"b")]
    end = lambda story: story.bring(story.frame({0: b""}, FinishReason.STOP_STRING))  # noqa: E731
    short, long = both_ways(*turns, end, stop=("xy",))
    assert short.cancelled == long.cancelled
    assert short.cancelled[0] == Cancel("r/0", FinishReason.STOP_STRING, at_output=3)


def test_choices_of_a_stream_have_lanes_of_their_own() -> None:
    texts = ({0: b"a", 1: b"A"}, {0: b"b", 1: b"B"}, {1: b"C"}, {0: b"c", 1: b"D"})
    turns = [lambda story, text=text: story.bring(story.frame(text)) for text in texts]
    end = lambda story: story.bring(story.frame({0: b"y", 1: b"z"}, FinishReason.LENGTH))  # noqa: E731
    short, _ = both_ways(*turns, end, choices=2)
    assert short.connection.sent.endswith(b"data: abcy\n\ndata: ABCDz\n\ndata: [DONE]\n\n")


def test_safety_rules_hold_text_back_on_the_short_way_too() -> None:
    rules = Rules([SafetyEntry(name="x", terms=("bcd",), whole_words=False)]).of("", "output").matcher
    assert rules is not None
    state = rules.beginning
    for letter in "abcxabc":  # steps that are known, as after other answers
        state = rules.step(state, letter).state
    texts = [bytes([byte]) for byte in b"abcxabcd"]
    turns = [lambda story, text=text: story.bring(story.frame({0: text})) for text in texts]
    end = lambda story: story.bring(story.frame({0: b""}, FinishReason.CONTENT_FILTER))  # noqa: E731
    short, long = both_ways(*turns, end, rules=rules)
    assert short.connection.sent.endswith(b"data: abcxa\n\ndata: [DONE]\n\n")
    assert b"d" not in short.connection.sent.replace(b"data", b"").replace(b"end", b"")
    assert short.cancelled == long.cancelled == [Cancel("r/0", FinishReason.CONTENT_FILTER, at_output=8)]
    assert short.connection.num_direct == long.connection.num_direct == 3  # "bcx", "a" and the end
    assert (short.num_pushes, long.num_pushes) == (3, 9)  # the first token, the match and the last frame


def test_a_token_that_cannot_be_read_ends_its_stream_alone() -> None:
    class Unreadable(dict[int, str]):
        def get(self, token: int, default: Any = None) -> str:
            raise ValueError

    def spoil(story: Story) -> None:
        story.ticket.active_requests[0].choices[0].decoder = cast(Any, None)
        story.ticket.active_requests[0].choices[0].fixed_texts = Unreadable()
        story.bring(story.frame({0: b"b"}))

    first = lambda story: story.bring(story.frame({0: b"a"}))  # noqa: E731
    end = lambda story: story.bring(story.frame({0: b""}, FinishReason.CANCELLED))  # noqa: E731
    short, _ = both_ways(first, spoil, end)
    assert b'"code":"internal_error"' in short.connection.sent
    assert short.cancelled == [Cancel("r/0", at_output=1)]
