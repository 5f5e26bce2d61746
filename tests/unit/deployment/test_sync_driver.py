"""The driver, interrupted wherever it may be while it works for two threads: by Ctrl-C, or the garbage collector."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from helpers import tiny_models
from helpers.ctrl_c import interrupt_at_line
from penstock import LLM, SamplingParams
from penstock.deployment.sync_driver import SyncTicket
from penstock.flow import Frame, Reply

PROMPT, OTHER = [5, 6, 7], [8, 9, 10]
LONG = SamplingParams(max_tokens=20, temperature=0.0)
SHORT = SamplingParams(max_tokens=6, temperature=0.0)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(str(tiny_models.make("llama", tmp_path_factory.mktemp("llama"))), device="cpu", threads=1) as llm:
        yield llm


def strike(work: Callable[[], object], at: int) -> bool:
    """At a line of the driver. Not at one of `with`: what is entered there is left again, since Python takes no signal
    in between. Nor at the very one where cleaning up begins, which nothing can guard."""
    return interrupt_at_line(work, ("/penstock/deployment/sync_driver.py",), at, skipped=("with ", "self.abandon("))


def test_others_miss_nothing_of_an_interrupt(llm: LLM) -> None:
    """Another thread has begun a request; this one turns the engine for both."""
    driver, expected = llm._driver, llm.generate(PROMPT, LONG, progress=False).tokens
    assert llm.generate(OTHER, SHORT, progress=False).tokens
    at = 1
    while True:
        (active,) = llm._accept([PROMPT], LONG, lambda prompt: {"tokens": prompt}, True)
        theirs = SyncTicket(active, finished=deque())
        driver.launch(theirs)
        was_interrupted = strike(lambda: llm.generate(OTHER, SHORT, progress=False), at)
        assert set(driver.tickets.values()) <= {theirs}  # nothing is left of ours
        thread = threading.Thread(target=driver.wait, args=(partial(getattr, active, "done"),))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        driver.abandon(theirs)
        assert active.completion().tokens == expected
        assert not driver.tickets
        stats = llm.stats()
        assert stats["running"] + stats["waiting"] == 0
        if not was_interrupted:
            break
        at += 1
    assert at > 100


def test_a_stream_that_is_interrupted_leaves_nothing_behind(llm: LLM) -> None:
    at = 1
    while strike(lambda: list(llm.stream(OTHER, SHORT)), at):
        assert not llm._driver.tickets
        stats = llm.stats()
        assert stats["running"] + stats["waiting"] == 0
        at += 1
    assert at > 50


def test_a_stream_that_the_garbage_collector_comes_upon(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed then, wherever that is: here by the thread that turns the engine, while it does."""
    driver = llm._driver
    stream = llm.stream(PROMPT, LONG)
    next(stream)
    receive, closed = driver.engine.receive, []

    def collected() -> list[Frame | Reply]:
        if not closed:
            closed.append(driver.lock.locked())
            stream.close()
            assert len(driver.abandoned) == 1  # the engine is in the middle of something
        return receive()

    monkeypatch.setattr(driver.engine, "receive", collected)
    assert len(llm.generate(OTHER, SHORT, progress=False).tokens) == SHORT.max_tokens
    assert closed == [True]
    assert not driver.tickets
    assert not driver.abandoned
    stats = llm.stats()
    assert stats["running"] + stats["waiting"] == 0


def test_what_is_left_while_another_thread_turns_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = llm._driver
    stream = llm.stream(PROMPT, LONG)
    next(stream)
    turning, go_on = threading.Event(), threading.Event()
    receive = driver.engine.receive

    def slow() -> list[Frame | Reply]:
        turning.set()
        go_on.wait(60)
        return receive()

    monkeypatch.setattr(driver.engine, "receive", slow)
    thread = threading.Thread(target=llm.generate, args=(OTHER, SHORT), kwargs={"progress": False})
    thread.start()
    assert turning.wait(60)
    stream.close()  # does not wait
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not driver.tickets
    assert not driver.abandoned
