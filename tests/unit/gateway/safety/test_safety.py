"""Requests under rules: what is rejected, filtered, reviewed by hooks, counted and recorded."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.deployment.ticket import Ticket
from penstock.errors import ContentRejected, InvalidSetting, SafetyUnavailable
from penstock.flow import CallDelta, Constraint, Delta, FinishReason, Request, SamplingParams, Submit
from penstock.flow.context import Document
from penstock.flow.tools import Tool, ToolUse
from penstock.gateway.safety import safety as module
from penstock.gateway.safety.metrics import SafetyCollector
from penstock.gateway.safety.moderation_hook import make_hook
from penstock.gateway.safety.rules import Rules
from penstock.gateway.safety.safety import Safety
from penstock.observe import events
from penstock.settings import SafetyEntry
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


KEYS = SafetyEntry(name="keys", patterns=("sk-[a-z]{4}",))
ACME = SafetyEntry(name="orion", terms=("Project Orion",), tenants=("acme",))
MANY_RULES = (KEYS, *(SafetyEntry(name=f"r{number}", terms=(f"forbidden{number} word",)) for number in range(100)))
PARAMS = SamplingParams()


def safety_of(*entries: SafetyEntry, post: Any = None, **options: Any) -> Safety:
    hooks = [make_hook(entry, post, {"KEY": "k"}) for entry in entries if entry.hook is not None]
    return Safety(Rules(entries, hooks), **options)


def request(text: str | None = None, *, tenant: str = "", **fields: Any) -> Request:
    return Request(id="r", params=PARAMS, text=text, tenant=tenant, **fields)


async def rejected(safety: Safety, one: Request) -> str | None:
    try:
        await safety.check([one])
    except ContentRejected as error:
        return f"{error.status} {error.code}: {error.message}"
    return None


MESSAGES = (
    [{"role": "user", "content": "use sk-abcd"}],
    [{"role": "user", "content": [{"type": "text", "text": "use sk-abcd"}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "\\u0073k-abcd"}'}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"sk-abcd": 1}}}]}],
    [{"role": "assistant", "reasoning_content": "sk-abcd"}],
    [{"role": "tool", "name": "sk-abcd", "content": ""}],
)


@pytest.mark.parametrize("messages", MESSAGES)
@in_loop
async def test_all_texts_of_messages_are_checked(messages: list[dict[str, Any]]) -> None:
    safety = safety_of(KEYS)
    assert (
        await rejected(safety, request(messages=messages))
        == "400 content_filter: the request matches the safety rule 'keys'"
    )
    assert safety.hits["keys", "input"] == 1


@in_loop
async def test_so_are_documents_tools_constraints_template_arguments_and_plain_prompts() -> None:
    safety = safety_of(KEYS)
    schema = SamplingParams(constraint=Constraint.json_schema({"enum": ["sk-abcd"]}))
    assert await rejected(safety, Request(id="r", params=schema, messages=[]))
    assert await rejected(safety, request("s\u200bk-ab\u00adcd"))
    assert await rejected(safety, request(messages=[], documents=(Document(id="d", text="use sk-abcd"),)))
    assert await rejected(safety, request(messages=[], documents=(Document(id="d", title="sk-abcd", text=""),)))
    tools = ToolUse(tools=(Tool(name="f", description="sk-abcd"),))
    assert await rejected(safety, request(messages=[], tools=tools))
    assert await rejected(safety, request(messages=[], template_arguments={"a": ["sk-abcd"]}))
    assert await rejected(safety, request("sk-abcd"))
    assert await rejected(safety, request("x" * 100_000 + "sk-abcd"))  # in a thread
    assert await rejected(safety, request("sk-" + "a b" * 40_000)) is None


@in_loop
async def test_roles_and_types_of_messages_are_no_texts() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [
        {"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "c"},
    ]  # fmt: skip
    safety = safety_of(SafetyEntry(name="words", terms=("system", "user", "assistant", "tool", "text", "function")))
    assert await rejected(safety, request(messages=talk)) is None
    assert await rejected(safety, request(messages=[{"role": "user", "content": "the user"}]))
    assert await rejected(safety, request(messages=[{"role": "critic", "type": "tool", "content": ""}]))


@in_loop
async def test_rules_are_those_of_the_tenant() -> None:
    safety = safety_of(KEYS, ACME)
    assert await rejected(safety, request("about project  orion", tenant="acme"))
    assert await rejected(safety, request("about project orion", tenant="other")) is None
    assert await rejected(safety, request("sk-abcd", tenant="acme"))
    assert await safety.moderate(["project orion"], "acme") == [{"keys": False, "orion": True}]
    assert await safety.moderate(["project orion", "sk-abcd"], "") == [{"keys": False}, {"keys": True}]


@in_loop
async def test_sizes_and_directions() -> None:
    safety = safety_of(
        SafetyEntry(name="size", max_chars=5, on="input"), SafetyEntry(name="o", terms=("x",), on="output")
    )
    message = await rejected(safety, request("123456"))
    assert message == "400 content_filter: the request has 6 characters of text, but the safety rule 'size' allows 5"
    assert await rejected(safety, request("x")) is None
    assert await safety.moderate(["x", "123456"], "") == [{"size": False, "o": True}, {"size": True, "o": False}]


@in_loop
async def test_texts_are_in_events_only_if_they_are_kept() -> None:
    for keep in (True, False):
        seen: list[Any] = []
        await rejected(safety_of(KEYS, emit=seen.append, keep_texts=keep), request("a sk-abcd"))
        (hit,) = seen
        assert isinstance(hit, events.SafetyHit)
        assert (hit.request, hit.rule, hit.where, hit.part) == ("r", "keys", "input", "prompt")
        assert hit.text == ("sk-abcd" if keep else None)


@in_loop
async def test_text_that_cannot_be_checked_in_time_is_refused() -> None:
    ticks = iter(range(10**6))
    safety = safety_of(KEYS, clock=lambda: float(next(ticks) * 100))
    with pytest.raises(SafetyUnavailable):
        await safety.check([request("x" * 200_000)])


@in_loop
async def test_a_search_leaves_the_event_loop_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    async def to_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        threads.append(function)
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    long, many = request("x y " * 4000), request(messages=[{"role": "user", "content": "hello"}] * 50)
    quick = safety_of(*MANY_RULES, clock=lambda: 0.0)
    for one in (long, many):
        await quick.check([one])
        assert (
            await rejected(quick, msgspec.structs.replace(one, documents=(Document(id="d", text="sk-abcd"),)))
            is not None
        )
    assert threads == []
    for one in (long, many):
        seconds = iter(range(100_000))
        slow = safety_of(*MANY_RULES, clock=lambda ticks=seconds: next(ticks) / 1000)  # type: ignore[misc]
        await slow.check([one])
        assert len(threads) == 1
        threads.clear()
    monkeypatch.setattr(module, "SHORT_WORK", 400_000)  # so that a slice would be shorter than what overlaps
    await quick.check([long])
    assert len(threads) == 1


class Letters:
    fixed_texts = None
    holds_text = False

    def push(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return ""


def active() -> ActiveRequest:
    return ActiveRequest("r", [Submit("r/0", [1], PARAMS, 0, 9)], lambda index: ChoiceStream(index, PARAMS, Letters()))


class Model:
    vocabulary = SimpleNamespace(
        decode=lambda tokens, skip_special: "".join(map(chr, tokens)), token_bytes=lambda token: chr(token).encode()
    )

    async def prepare(self, requests: list[Request]) -> Any:
        return SimpleNamespace(active_requests=[active() for _ in requests])


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@in_loop
async def test_prompts_of_token_ids_are_read_with_the_models_vocabulary() -> None:
    safety = safety_of(KEYS)
    with pytest.raises(ContentRejected):
        await safety.prepare(Model(), [request(tokens=ids("sk-abcd"))])  # type: ignore[arg-type]
    await safety.prepare(Model(), [request(tokens=ids("sk-"))])  # type: ignore[arg-type]


@in_loop
async def test_output_is_filtered_and_counted() -> None:
    safety = safety_of(KEYS)
    call = await safety.prepare(Model(), [request("x")])  # type: ignore[arg-type]
    chunk, cancel = call.active_requests[0].push(Delta(id="r/0", tokens=ids("is sk-abcd")))
    assert chunk is not None
    assert (chunk.text, chunk.finish, chunk.stop) == ("is ", FinishReason.CONTENT_FILTER, "keys")
    assert cancel is not None
    assert safety.hits["keys", "output"] == 1


@pytest.mark.parametrize(
    ("continued", "shown"),
    [
        ({"text": "my sk-"}, ""),
        ({"tokens": ids("my sk-")}, ""),
        ({"messages": [{"role": "assistant", "content": "my sk-"}], "continue_final_message": True}, ""),
        ({"messages": [{"role": "user", "content": "my sk-"}]}, "abcd"),
    ],
)
@in_loop
async def test_what_an_answer_continues_is_part_of_a_match(continued: dict[str, Any], shown: str) -> None:
    call = await safety_of(KEYS).prepare(Model(), [request(**continued)])  # type: ignore[arg-type]
    chunk, _ = call.active_requests[0].push(Delta(id="r/0", tokens=ids("abcd")))
    assert chunk is not None
    assert (chunk.text, chunk.finish is FinishReason.CONTENT_FILTER) == (shown, shown == "")


# --- hooks


def flag_bad(text: str) -> bool:
    return "bad" in text


async def flag_bad_later(text: str) -> bool:
    await asyncio.sleep(0)
    return "bad" in text


def nonsense(text: str) -> Any:
    return "yes"


async def never(text: str) -> bool:
    await asyncio.Event().wait()
    return False


def nothing(text: str) -> Any:
    return None


def raises(text: str) -> bool:
    raise ValueError(text)


async def raises_later(text: str) -> bool:
    raise ValueError(text)


def exits(text: str) -> bool:
    raise SystemExit(text)


async def exits_later(text: str) -> bool:
    raise SystemExit(text)


def stops(text: str) -> bool:
    raise StopIteration(text)


async def cancels(text: str) -> bool:
    raise asyncio.CancelledError


class Blocking:
    """A function that returns once it may."""

    def __init__(self) -> None:
        self.may_return = threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self, text: str) -> bool:
        self.threads.append(threading.current_thread())
        self.may_return.wait()
        return False


HOOKS = (
    flag_bad, flag_bad_later, nonsense, nothing, never, raises, raises_later, exits, exits_later, stops, cancels
)  # fmt: skip


def function_hook(name: str, **fields: Any) -> SafetyEntry:
    return SafetyEntry(name="judge", hook=f"{__name__}:{name}", **fields)


@pytest.fixture(autouse=True)
def blocking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocking]:
    """As a module that a hook can name: pytest imports test files by path."""
    blocks = Blocking()
    hooks = {one.__name__: one for one in HOOKS}
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(**hooks, blocks=blocks))
    yield blocks
    blocks.may_return.set()


@pytest.mark.parametrize("name", ["flag_bad", "flag_bad_later"])
@in_loop
async def test_a_python_function_judges(name: str) -> None:
    safety = safety_of(function_hook(name))
    assert await rejected(safety, request("bad")) == "400 content_filter: the request matches the safety rule 'judge'"
    assert await rejected(safety, request("good")) is None


FAILING = [
    "nonsense", "nothing", "raises", "raises_later", "exits", "exits_later", "stops", "cancels", "never", "blocks"
]  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("on_failure", ["open", "closed"])
@in_loop
async def test_a_hook_that_fails_is_open_or_closed(name: str, on_failure: str, caplog: Any) -> None:
    kind = "timeout" if name in ("never", "blocks") else "error"
    safety = safety_of(function_hook(name, timeout_s=0.01 if kind == "timeout" else 60, on_failure=on_failure))
    refusal = (
        "400 content_filter: the safety rule 'judge' could not check the request, so it is rejected; try again later"
    )
    assert await rejected(safety, request("anything")) == (None if on_failure == "open" else refusal)
    assert "hook failed" in caplog.text
    assert "anything" not in caplog.text
    assert safety.rules.hooks[0].failures == {kind: 1}
    metrics = {sample.name for family in SafetyCollector(safety).collect() for sample in family.samples}
    assert "penstock_safety_hook_failures_total" in metrics


@in_loop
async def test_a_function_that_blocks_takes_eight_threads_at_most(blocking: Blocking) -> None:
    safety = safety_of(function_hook("blocks", timeout_s=0.01))
    for _ in range(12):
        assert await rejected(safety, request("x")) is not None
    while len(blocking.threads) < 8:
        await asyncio.sleep(0)
    assert len(blocking.threads) == 8
    assert all(thread.daemon for thread in blocking.threads)  # the server does not wait for them at its end
    blocking.may_return.set()
    while (await safety.rules.hooks[0].check("x")).failure is not None:  # slots come back
        pass


def poster(answer: bytes | Exception) -> Callable[[str, dict[str, str], bytes], Awaitable[bytes]]:
    async def post(url: str, headers: dict[str, str], body: bytes) -> bytes:
        assert (url, headers["authorization"], body) == ("http://judge/v1", "Bearer k", b'{"input":"text"}')
        if isinstance(answer, Exception):
            raise answer
        return answer

    return post


@pytest.mark.parametrize(
    ("answer", "flagged", "failed"),
    [
        (b'{"id": "1", "results": [{"flagged": true, "categories": {"hate": true, "x": false}}]}', True, False),
        (b'{"results": [{"flagged": false}]}', False, False),
        (b'{"results": []}', True, True),
        (b"<html>", True, True),
        (OSError("away"), True, True),
    ],
)
@in_loop
async def test_an_endpoint_judges(answer: bytes | Exception, flagged: bool, failed: bool) -> None:
    entry = SafetyEntry(name="judge", hook="http://judge/v1", hook_key_env="KEY")
    safety = safety_of(entry, post=poster(answer))
    assert (await rejected(safety, request("text")) is not None) == flagged
    assert bool(safety.rules.hooks[0].failures) == failed


@pytest.mark.parametrize("hook", ["nomodule:f", "json:nothing", "json:__name__", "json", "http"])
def test_a_hook_that_is_not_there_is_an_error_at_start(hook: str) -> None:
    with pytest.raises(InvalidSetting, match="judge"):
        safety_of(SafetyEntry(name="judge", hook=hook))


def test_a_key_that_is_not_there_is_an_error_at_start() -> None:
    with pytest.raises(InvalidSetting, match="NONE"):
        safety_of(SafetyEntry(name="judge", hook="http://judge", hook_key_env="NONE"))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("text", "flagged"), [("bad", True), ("good", False)])
@in_loop
async def test_a_hook_reviews_whole_answers_before_they_are_shown(stream: bool, text: str, flagged: bool) -> None:
    safety = safety_of(function_hook("flag_bad", on="output"))
    ticket = Ticket([active()])
    safety.review_answer(ticket, "")
    reading = asyncio.create_task(ticket.take() if stream else ticket.finished())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    ticket.push(Delta(id="r/0", tokens=ids(text)))
    ticket.push(Delta(id="r/0", tokens=[], finish=FinishReason.LENGTH))
    ticket.flush()
    chunks = await reading
    choice = ticket.active_requests[0].completion().choices[0]
    expected = ("", [], FinishReason.CONTENT_FILTER) if flagged else (text, ids(text), FinishReason.LENGTH)
    assert (choice.text, choice.tokens, choice.finish) == expected
    if stream:
        ((_, chunk),) = chunks
        assert (chunk.text, chunk.tokens, chunk.finish) == expected
        assert await ticket.take() == []


@in_loop
async def test_a_hook_reads_names_and_arguments_of_calls() -> None:
    safety = safety_of(function_hook("flag_bad", on="output"))
    for name, arguments in (("bad", "{}"), ("f", '{"a": "bad"}')):
        ticket = Ticket([active()])
        safety.review_answer(ticket, "")
        (choice,) = ticket.active_requests[0].choices
        choice.calls.append(CallDelta(index=0, id="c", name=name, arguments=arguments))
        ticket.push(Delta(id="r/0", tokens=ids("good"), finish=FinishReason.END))
        await ticket.finished()
        assert ticket.active_requests[0].completion().choices[0].finish is FinishReason.CONTENT_FILTER


@in_loop
async def test_a_text_that_is_too_long_for_hooks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HOOK_TEXT", 10)
    with pytest.raises(SafetyUnavailable):
        await safety_of(function_hook("flag_bad")).check([request("x" * 11)])
    with pytest.raises(SafetyUnavailable):
        await safety_of(function_hook("flag_bad")).moderate(["fine", "x" * 11], "")


@in_loop
async def test_texts_to_moderate_do_not_wait_for_each_other() -> None:
    waiting: list[str] = []
    all_asked = asyncio.Event()

    async def post(url: str, headers: dict[str, str], body: bytes) -> bytes:
        waiting.append(url)
        if len(waiting) == module.MAX_REVIEWS:
            all_asked.set()
        await all_asked.wait()
        return b'{"results": [{"flagged": false}]}'

    safety = safety_of(SafetyEntry(name="judge", hook="http://judge", timeout_s=60), post=post)
    found = await safety.moderate(["text"] * (module.MAX_REVIEWS + 3), "")
    assert found == [{"judge": False}] * (module.MAX_REVIEWS + 3)


@in_loop
async def test_every_size_that_a_text_exceeds_is_named() -> None:
    safety = safety_of(*(SafetyEntry(name=f"size{limit}", max_chars=limit) for limit in (9, 5, 20)))
    assert await safety.moderate(["x" * 12], "") == [{"size9": True, "size5": True, "size20": False}]
