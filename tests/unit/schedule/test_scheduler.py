"""What comes in and what goes out: refusals, endings, deltas, figures."""

from __future__ import annotations

import pytest

from penstock.cache import CacheManager, prefix_chain
from penstock.errors import ContextOverflow, InvalidRequest, OutOfMemory, PenstockError, QueueFull
from penstock.flow import (
    Cancel,
    FinishReason,
    RowResult,
    SamplingParams,
    StepResult,
    Submit,
    Task,
    TokenLogprobs,
    record,
)
from penstock.flow.prefix import block_key
from penstock.schedule import Scheduler
from penstock.schedule.deadlines import STALE
from penstock.store.spec import CacheGroup
from simulation.device import VOCABULARY
from simulation.world import World

PROMPT = [1, 5, 2, 6, 3, 0, 4, 4, 1]
DEPTHS = pytest.mark.parametrize("lookahead", [0, 1])


def submit_message(tokens: list[int], id: str = "x", max_output: int = 4, task: Task = "generate") -> Submit:
    return Submit(id=id, tokens=tokens, params=SamplingParams(), seed=0, max_output=max_output, task=task)


def ending(world: World, id: str) -> tuple[int, FinishReason | None]:
    end = world.clients[id].end
    return len(world.clients[id].tokens), end.finish if end else None


# --- prefixes


def test_the_choices_of_a_request_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = 0

    def counted(parent: bytes, packed: bytes) -> bytes:
        nonlocal hashed
        hashed += 1
        return block_key(parent, packed)

    monkeypatch.setattr(prefix_chain, "block_key", counted)
    world = World(step_tokens=64)
    for tenant, salt in (("", ""), ("", ""), ("", ""), ("", "another"), ("another", "another"), ("another", "another")):
        world.submit(PROMPT, tenant=tenant, salt=salt)
    world.scheduler.plan()  # matches all of them
    assert hashed == 3 * (len(PROMPT) // world.cache.block_size)


# --- refusals


@pytest.mark.parametrize(
    ("message", "error", "param"),
    [
        (submit_message([]), InvalidRequest, "prompt"),
        (submit_message([1] * 64), ContextOverflow, "prompt"),
        (submit_message([1], max_output=0), InvalidRequest, "max_tokens"),
        (submit_message([1], id="r0"), InvalidRequest, "id"),
        (submit_message([], task="embed"), InvalidRequest, "input"),
        (submit_message([1] * 65, task="embed"), ContextOverflow, "input"),
    ],
)
def test_what_cannot_run_is_refused(message: Submit, error: type[PenstockError], param: str) -> None:
    world = World(context=64)
    world.submit(PROMPT)
    with pytest.raises(error) as raised:
        world.scheduler.submit(message)
    assert raised.value.param == param
    world.run()
    world.check_over()


def test_whoever_has_a_slot_does_not_queue() -> None:
    world = World(max_waiting=2, max_sequences=4)
    for _ in range(6):
        world.submit(PROMPT)
    with pytest.raises(QueueFull, match="2 sequences are waiting"):
        world.submit(PROMPT)
    world.run()
    world.check_over()


def test_a_full_queue_refuses_and_recovers() -> None:
    world = World(max_waiting=2, max_sequences=1)
    world.submit(PROMPT)
    world.step()
    world.submit(PROMPT)
    world.submit(PROMPT)
    with pytest.raises(QueueFull, match="2 sequences are waiting"):
        world.submit(PROMPT)
    world.run()
    world.submit(PROMPT)
    world.run()
    world.check_over()


def test_a_refused_message_still_gets_its_terminal_delta() -> None:
    world = World()
    world.now = 7.0
    world.scheduler.refuse(submit_message([], id="bad"), InvalidRequest("the prompt is empty"))
    (delta,) = world.scheduler.drain()
    assert (delta.id, delta.finish, delta.error) == ("bad", FinishReason.ERROR, "the prompt is empty")
    assert delta.timings is not None
    assert delta.timings.finished == 7.0
    assert world.scheduler.drain() == []


@pytest.mark.parametrize(
    ("windows", "blocks", "message"),
    [
        ((0,), [16], "needs 16 KV blocks of 4 tokens in the layers with full attention, .* for 15: 1 are missing"),
        ((0, 8), [17, 4], "needs 5 KV blocks of 4 tokens in the layers with a window of 8, .* for 3: 2 are missing"),
    ],
)
def test_a_cache_too_small_for_one_sequence_is_refused(windows: list[int], blocks: list[int], message: str) -> None:
    groups = [CacheGroup(window, (0,)) for window in windows]

    def build(blocks: list[int]) -> None:
        cache = CacheManager(groups, blocks, 4, True)
        Scheduler(cache, step_tokens=8, max_sequences=4, max_waiting=9, policy="fcfs", lookahead=0, context=64)

    with pytest.raises(OutOfMemory, match=message):
        build(blocks)
    build([17, 6][: len(blocks)])


# --- endings


@DEPTHS
def test_lengths_never_cost_a_surplus_token(lookahead: int) -> None:
    world = World(lookahead=lookahead, context=20)
    by_length = world.submit(PROMPT, max_output=3)
    by_context = world.submit(PROMPT, max_output=1000)
    world.run()
    world.check_over()
    assert ending(world, by_length) == (3, FinishReason.LENGTH)
    assert ending(world, by_context) == (11, FinishReason.CONTEXT)
    # Every token but the last of each sequence is computed once, and the shared prompt's two full blocks once in all.
    assert world.device.computed_tokens == (9 + 2) + (9 - 8 + 10)


@DEPTHS
@pytest.mark.parametrize("kind", ["end", "stop"])
def test_an_end_costs_at_most_one_surplus_row_per_depth(lookahead: int, kind: str) -> None:
    free = World()
    free.submit(PROMPT, max_output=30)
    free.run()
    tokens = free.clients["r0"].tokens
    index = next(index for index, token in enumerate(tokens) if index > 4 and token not in tokens[:index])
    world = World(lookahead=lookahead)
    if kind == "end":
        id = world.submit(PROMPT, max_output=30, end_tokens=(tokens[index],), stop_tokens=(tokens[index],))
    else:
        id = world.submit(PROMPT, max_output=30, stop_tokens=(tokens[index],))
    world.run()
    world.check_over()
    assert world.clients[id].tokens == tokens[: index + 1], "the token that ended it is part of the output"
    assert ending(world, id)[1] == (FinishReason.END if kind == "end" else FinishReason.STOP_TOKEN)
    assert world.device.computed_tokens == len(PROMPT) + index + lookahead


def test_tokens_that_min_tokens_forbids_go_to_the_device() -> None:
    world = World()
    world.submit(PROMPT, end_tokens=(2, 3), stop_tokens=(5, 3))
    plan = world.scheduler.plan()
    assert plan is not None
    assert sorted(plan.admits[0].end_tokens) == [2, 3, 5]


@DEPTHS
def test_a_deadline_ends_running_and_waiting_sequences(lookahead: int) -> None:
    world = World(lookahead=lookahead, max_sequences=1)
    running = world.submit(PROMPT, max_output=40, timeout_s=5.0)
    waiting = world.submit(PROMPT, timeout_s=4.0)
    patient = world.submit(PROMPT)
    for _ in range(4):
        world.step()
    world.now = 5.0
    world.step()
    assert ending(world, waiting) == (0, FinishReason.TIMEOUT)
    assert ending(world, running) == (4 - lookahead, FinishReason.TIMEOUT)
    world.run()
    assert ending(world, patient) == (8, FinishReason.LENGTH)
    world.check_over()


def test_a_deadline_that_passes_during_a_step_ends_the_sequence_with_that_steps_token() -> None:
    world = World()
    id = world.submit(PROMPT, max_output=40, timeout_s=5.0)
    plan = world.scheduler.plan()
    assert plan is not None
    world.device.launch(plan)
    world.now = 6.0
    deltas = world.scheduler.settle(world.device.collect())
    assert [(delta.id, len(delta.tokens), delta.finish) for delta in deltas] == [
        (id, 1, None),
        (id, 0, FinishReason.TIMEOUT),
    ]


def test_the_deadline_of_an_ended_sequence_does_not_strike_a_later_one_of_the_same_id() -> None:
    world = World()
    first = Submit(id="x", tokens=PROMPT, params=SamplingParams(), seed=0, max_output=4, deadline_s=5.0)
    world.scheduler.submit(first)
    world.scheduler.cancel(Cancel("x"))
    world.scheduler.submit(submit_message(PROMPT, id="x"))
    world.scheduler.drain()
    world.now = 6.0
    world.scheduler.plan()
    assert world.scheduler.drain() == []


def test_cancel_carries_its_finish_and_ignores_strangers() -> None:
    world = World()
    id = world.submit(PROMPT, max_output=40)
    world.step()
    world.step()
    world.cancel("nobody")
    world.cancel(id, FinishReason.STOP_STRING)
    world.cancel(id)
    assert ending(world, id) == (2, FinishReason.STOP_STRING)
    world.run()
    world.check_over()


@DEPTHS
def test_what_a_client_was_not_given_is_neither_counted_nor_cached(lookahead: int) -> None:
    world = World(lookahead=lookahead, context=64)
    id = world.submit(PROMPT, max_output=50)
    while len(world.clients[id].tokens) < 20:
        world.step()
    world.cancel(id, FinishReason.STOP_STRING, at_output=5)
    world.run()
    world.check_over()
    assert world.scheduler.stats()["output_tokens"] == 5
    again = world.submit(PROMPT + world.clients[id].tokens)
    world.run()
    end = world.clients[again].end
    assert end is not None
    assert end.cached_tokens == 12, "of 9 + 5 tokens that count, three blocks are full"


@DEPTHS
def test_failure_ends_what_runs_and_spares_what_waits(lookahead: int) -> None:
    world = World(lookahead=lookahead, max_sequences=1)
    running, waiting = world.submit(PROMPT, max_output=20), world.submit(PROMPT)
    for _ in range(4):
        world.step()
    world.fail()
    end = world.clients[running].end
    assert end is not None
    assert (end.finish, end.error) == (FinishReason.ERROR, "the device broke down")
    assert world.scheduler.in_flight == 0
    world.run()
    assert ending(world, waiting) == (8, FinishReason.LENGTH)
    world.check_over()


def test_failure_within_a_result_loses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a sequence that was sent back, and waits for nothing but this."""
    world = World()
    preemptions = world.submit(PROMPT)
    world.half_step()
    queues = world.scheduler._queues
    queues.preempt(queues.sequences[preemptions], record.BLOCKS)
    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "_settle_row", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.half_step()
    world.fail()
    world.run()
    assert ending(world, preemptions) == (8, FinishReason.LENGTH)
    world.check_over()


def test_far_deadlines_of_ended_sequences_do_not_pile_up() -> None:
    world = World()
    kept = world.submit(PROMPT, timeout_s=1e9)
    for number in range(3 * STALE):
        message = Submit(id=f"s{number}", tokens=PROMPT, params=SamplingParams(), seed=0, max_output=4, deadline_s=1e9)
        world.scheduler.submit(message)
        world.scheduler.cancel(Cancel(message.id))
    world.scheduler.drain()
    assert len(world.scheduler._deadlines._heap) <= STALE + 2
    world.now = 2e9
    world.run()
    assert ending(world, kept)[1] is FinishReason.TIMEOUT


def test_there_is_work_until_the_last_news_is_handed_out() -> None:
    world = World()
    world.submit(PROMPT, timeout_s=1.0)
    world.now = 2.0
    assert world.scheduler.plan() is None
    assert world.scheduler.has_work
    assert [delta.finish for delta in world.scheduler.drain()] == [FinishReason.TIMEOUT]
    assert not world.scheduler.has_work


# --- news


def test_several_tokens_of_one_row_are_taken_up_to_the_one_that_ends() -> None:
    world = World()
    world.submit(PROMPT, max_output=40, end_tokens=(3,), logprobs=0)
    plan = world.scheduler.plan()
    assert plan is not None
    logprobs = [TokenLogprobs(token, -1.0, 1, []) for token in (5, 3, 6)]
    (delta,) = world.scheduler.settle(StepResult(plan.number, [RowResult([5, 3, 6], logprobs)]))
    assert (delta.tokens, delta.logprobs, delta.finish) == ([5, 3], logprobs[:2], FinishReason.END)


@DEPTHS
def test_timings_tell_the_story(lookahead: int) -> None:
    world = World(lookahead=lookahead, max_sequences=1)
    world.now = 10.0
    world.submit(PROMPT, max_output=2)
    second = world.submit(PROMPT, max_output=3)
    while world.scheduler.has_work:
        world.now += 1.0
        world.step()
    end = world.clients[second].end
    assert end is not None
    timings = end.timings
    assert timings is not None
    assert timings.arrival == 10.0
    assert timings.admitted is not None
    assert timings.admitted > 12.0, "it waited for the first one's slot"
    assert timings.first_token == timings.admitted + lookahead
    assert timings.finished == timings.first_token + 2


@DEPTHS
def test_prompt_logprobs_come_once_and_whole_even_after_a_preemption(lookahead: int) -> None:
    world = World(lookahead=lookahead, step_tokens=4, spare_blocks=2, context=32, max_sequences=2)
    world.submit(PROMPT, max_output=23)
    for _ in range(20):
        world.step()
    cold = world.submit([6, *PROMPT[:5]], prompt_logprobs=0, max_output=20)
    hot = world.submit(PROMPT, prompt_logprobs=0, max_output=1)
    world.run()
    world.check_over()  # compares the log-probabilities
    for id in (cold, hot):
        end = world.clients[id].end
        assert end is not None
        assert end.cached_tokens == 0
    assert world.scheduler.stats()["preemptions"] > 0


@pytest.mark.parametrize("prompt_logprobs", [None, 0])
def test_a_constraint_that_lets_nothing_follow_still_tells_of_the_prompt(prompt_logprobs: int | None) -> None:
    world = World()
    world.submit(PROMPT)
    world.run()
    world.submit(PROMPT, prompt_logprobs=prompt_logprobs)
    plan = world.scheduler.plan()
    assert plan is not None
    scores = None if prompt_logprobs is None else [TokenLogprobs(token, -1.0, 1, []) for token in PROMPT[1:]]
    outcome = RowResult([], prompt_logprobs=scores, finish=FinishReason.DEAD_END)
    (delta,) = world.scheduler.settle(StepResult(plan.number, [outcome]))
    assert (delta.tokens, delta.finish) == ([], FinishReason.DEAD_END)
    assert delta.cached_tokens == (8 if prompt_logprobs is None else 0)
    assert delta.prompt_logprobs == scores


# --- embeddings


@DEPTHS
def test_an_embedding_is_one_delta_with_the_end_of_its_prompt(lookahead: int) -> None:
    """In chunks, beside one that generates; a token more than generating would leave room for."""
    world = World(lookahead=lookahead, step_tokens=5, context=16)
    neighbour = world.submit(PROMPT, max_output=7)
    mean, last = (world.submit([2] * 16, embed=pooling) for pooling in ("mean", "last"))
    world.run()
    world.check_over()  # compares the embeddings
    for id in (mean, last):
        (delta,) = world.clients[id].deltas
        assert (delta.tokens, delta.finish, delta.cached_tokens) == ([], FinishReason.END, 0)
        assert delta.timings is not None
        assert delta.timings.admitted is not None
    assert ending(world, neighbour) == (7, FinishReason.CONTEXT)
    assert world.scheduler.stats()["output_tokens"] == 7


@DEPTHS
def test_an_embedding_reads_nothing_from_the_cache_but_leaves_its_blocks_there(lookahead: int) -> None:
    world = World(lookahead=lookahead)
    first, second = world.submit(PROMPT, embed="mean"), world.submit(PROMPT, embed="mean")
    world.run()
    assert world.device.computed_tokens == 2 * len(PROMPT)
    after = world.submit(PROMPT)
    world.run()
    world.check_over()
    cached = [end.cached_tokens for id in (first, second, after) if (end := world.clients[id].end)]
    assert cached == [0, 0, 8]


@DEPTHS
def test_a_preempted_embedding_pools_every_position_once(lookahead: int) -> None:
    world = World(lookahead=lookahead, step_tokens=4, spare_blocks=2, context=32, max_sequences=2)
    world.submit(PROMPT, max_output=23)
    for _ in range(8):
        world.step()
    id = world.submit([6] * 20, embed="mean")
    world.run()
    world.check_over()
    end = world.clients[id].end
    assert end is not None
    assert end.timings is not None
    assert end.timings.preemptions > 0


@DEPTHS
def test_an_embedding_can_be_cancelled_time_out_and_fail(lookahead: int) -> None:
    world = World(lookahead=lookahead, step_tokens=6)
    cancelled, late, failed = (
        world.submit([place] * 40, embed="mean", timeout_s=4.0 if place == 1 else None) for place in range(3)
    )
    for _ in range(4):
        world.step()
    world.cancel(cancelled)
    world.now = 4.0
    world.step()
    world.fail()
    world.run()
    world.check_over()
    endings = [ending(world, id)[1] for id in (cancelled, late, failed)]
    assert endings == [FinishReason.CANCELLED, FinishReason.TIMEOUT, FinishReason.ERROR]


# --- figures


def test_stats_name_what_is_going_on() -> None:
    world = World(max_sequences=1)
    world.submit(PROMPT, max_output=4)
    world.submit(PROMPT, max_output=4)
    world.step()
    stats = world.scheduler.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"], stats["steps"]) == (1, 1, 0, 1)
    assert stats["blocks"][0]["held"] == 3
    world.run()
    stats = world.scheduler.stats()
    assert (stats["running"], stats["waiting"], stats["submitted"]) == (0, 0, 2)
    assert (stats["prompt_tokens"], stats["prefix_hit_tokens"], stats["output_tokens"]) == (18, 8, 8)
    assert stats["blocks"][0]["held"] == 0


# --- contract with the caller


def test_results_must_come_in_order() -> None:
    world = World(lookahead=1)
    world.submit(PROMPT)
    world.scheduler.plan()
    second = world.scheduler.plan()
    assert second is not None
    with pytest.raises(AssertionError, match="result 2 does not answer plan 1"):
        world.scheduler.settle(StepResult(second.number, [RowResult([0])]))


@DEPTHS
def test_no_more_steps_than_allowed_are_in_flight(lookahead: int) -> None:
    world = World(lookahead=lookahead)
    world.submit(PROMPT)
    for _ in range(lookahead + 1):
        assert world.scheduler.plan() is not None
    with pytest.raises(AssertionError, match="settle"):
        world.scheduler.plan()


def test_a_submitted_prompt_is_not_written_to() -> None:
    message = submit_message(list(PROMPT))
    world = World()
    world.device.requests[0] = message
    world.scheduler.submit(message)
    while world.scheduler.has_work:
        plan = world.scheduler.plan()
        assert plan is not None
        world.device.launch(plan)
        world.scheduler.settle(world.device.collect())
    assert message.tokens == PROMPT
    assert max(PROMPT) < VOCABULARY


def test_integrity_check_notices_a_lost_count() -> None:
    world = World()
    id = world.submit(PROMPT)
    world.scheduler.plan()
    world.scheduler._queues.sequences[id].in_flight = 0
    with pytest.raises(PenstockError, match="miscounts its rows"):
        world.scheduler.check_integrity()


def test_integrity_check_notices_a_sequence_in_the_wrong_place() -> None:
    world = World()
    id = world.submit(PROMPT)
    sequence = world.scheduler._queues.sequences[id]
    world.scheduler._queues.ready.remove(sequence)
    with pytest.raises(PenstockError, match="WAITING but not where it should be"):
        world.scheduler.check_integrity()


def test_integrity_check_notices_a_lost_slot() -> None:
    world = World()
    world.scheduler._queues.slots.allocate()
    with pytest.raises(PenstockError, match="slots"):
        world.scheduler.check_integrity()
