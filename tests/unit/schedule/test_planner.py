"""Who gets what: budget, slots, blocks, shared prefixes."""

from __future__ import annotations

from random import Random

import pytest

from penstock.flow import FinishReason, StepPlan
from penstock.schedule.queues import SequenceQueues
from penstock.schedule.sequence import Sequence
from penstock.schedule.speculation import DraftBudget
from simulation.device import VOCABULARY
from simulation.world import World

DEPTHS = pytest.mark.parametrize("lookahead", [0, 1])


def prompt(length: int, first: int = 0) -> list[int]:
    return [(first + 3 * index * index + index) % VOCABULARY for index in range(length)]


def rows(plan: StepPlan | None) -> list[tuple[int, int, int, bool]]:
    assert plan is not None
    return [(row.slot, row.start, row.count, row.sample) for row in plan.rows]


def plan(world: World) -> StepPlan | None:
    """Plan, run and settle at depth 0; gives the plan."""
    plan = world.scheduler.plan()
    world.scheduler.check_integrity()
    if plan is not None:
        world.device.launch(plan)
        world._receive(world.scheduler.settle(world.device.collect()))
    world.scheduler.check_integrity()
    return plan


def cached(world: World, id: str) -> int:
    end = world.clients[id].end
    assert end is not None
    return end.cached_tokens


# --- budget


def test_long_prompts_are_computed_in_chunks_between_the_others_tokens() -> None:
    world = World(step_tokens=8, prefix_caching=False)
    world.submit(prompt(3), max_output=10)
    world.submit(prompt(20, 1), max_output=10)
    assert rows(plan(world)) == [(0, 0, 3, True), (1, 0, 5, False)]
    assert rows(plan(world)) == [(0, 3, 1, True), (1, 5, 7, False)]
    assert rows(plan(world)) == [(0, 4, 1, True), (1, 12, 7, False)]
    assert rows(plan(world)) == [(0, 5, 1, True), (1, 19, 1, True)]
    assert rows(plan(world)) == [(0, 6, 1, True), (1, 20, 1, True)]
    world.run()
    world.check_over()


def test_a_single_token_goes_first_even_if_its_sequence_came_later() -> None:
    world = World(step_tokens=6, policy="priority")
    world.submit(prompt(2), priority=1, max_output=9)
    plan(world)
    world.submit(prompt(30, 1), priority=0)
    assert rows(plan(world)) == [(0, 2, 1, True), (1, 0, 5, False)]
    assert rows(plan(world)) == [(0, 3, 1, True), (1, 5, 5, False)]


def test_fewer_tokens_than_sequences_serve_the_first_ones() -> None:
    world = World(step_tokens=2, max_sequences=4)
    for index in range(4):
        world.submit([index], max_output=5)
    world.run()
    world.check_over()


@DEPTHS
def test_slots_limit_what_runs(lookahead: int) -> None:
    world = World(max_sequences=2, lookahead=lookahead)
    for index in range(5):
        world.submit(prompt(3, index), max_output=3)
    while world.scheduler.has_work:
        world.step()
        assert world.scheduler.stats()["running"] <= 2
    world.check_over()


# --- blocks


@DEPTHS
def test_when_blocks_run_out_the_last_in_line_makes_room_and_comes_back(lookahead: int) -> None:
    world = World(context=32, spare_blocks=4, max_sequences=3, lookahead=lookahead)
    ids = [world.submit(prompt(6, index), max_output=24) for index in range(3)]
    world.run()
    world.check_over()
    preemptions = [world.clients[id].end.timings.preemptions for id in ids]  # type: ignore[union-attr]
    assert preemptions[0] == 0, "the first in line never makes room"
    assert preemptions[2] > 0
    assert world.scheduler.stats()["preemptions"] == sum(preemptions)


@DEPTHS
def test_a_preempted_sequence_finds_its_own_blocks_again_but_reports_what_was_cached_at_first(lookahead: int) -> None:
    world = World(context=32, spare_blocks=4, max_sequences=2, lookahead=lookahead)
    world.submit(prompt(5), max_output=24)
    victim = world.submit(prompt(5, 1), max_output=24)
    world.run()
    world.check_over()
    assert world.scheduler.stats()["preemptions"] > 0
    assert cached(world, victim) == 0
    tokens = 2 * (5 + 23)
    assert world.device.computed_tokens < tokens + 5 + 23, "it did not begin anew"


def test_a_pending_token_survives_the_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    pending: list[int] = []
    preempt = SequenceQueues.preempt

    def spy(self: SequenceQueues, sequence: Sequence, why: int) -> None:
        pending.append(sequence.pending)
        preempt(self, sequence, why)

    monkeypatch.setattr(SequenceQueues, "preempt", spy)
    world = World(context=32, spare_blocks=4, max_sequences=3, lookahead=1)
    for index in range(3):
        world.submit(prompt(6, index), max_output=24)
    world.run()
    assert 1 in pending, "the situation this test is about did not arise"
    world.check_over()


def test_admission_leaves_a_block_for_each_sequence_that_runs() -> None:
    world = World(context=32, spare_blocks=0, max_sequences=4)  # eight blocks of four
    world.submit(prompt(7), max_output=9)  # two blocks
    world.submit(prompt(19, 1), max_output=2)  # five
    world.submit(prompt(2, 2), max_output=2)  # one, and there is one
    first = plan(world)
    assert first is not None
    assert len(first.admits) == 2
    world.run()
    world.check_over()
    assert world.scheduler.stats()["preemptions"] == 0


def test_nobody_overtakes_one_that_waits_for_blocks() -> None:
    world = World(context=32, spare_blocks=0, max_sequences=4)
    world.submit(prompt(12), max_output=8)
    big = world.submit(prompt(28, 1), max_output=2)
    small = world.submit(prompt(2, 2), max_output=2)
    while world.clients[big].end is None:
        world.step()
        running = {sequence.id for sequence in world.scheduler._queues.running}
        assert small not in running or big in running
    world.run()
    world.check_over()


@DEPTHS
@pytest.mark.parametrize("windows", [(0,), (8,), (0, 8), (1,)])
def test_one_sequence_alone_always_reaches_the_context_limit(windows: tuple[int, ...], lookahead: int) -> None:
    world = World(windows=windows, context=60, step_tokens=7, spare_blocks=0, lookahead=lookahead)
    for length in (59, 1, 40):
        id = world.submit(prompt(length), max_output=60)
        world.run()
        assert len(world.clients[id].tokens) == 60 - length
    world.check_over()
    assert world.scheduler.stats()["preemptions"] == 0


@DEPTHS
def test_a_window_holds_few_blocks_however_long_the_sequence(lookahead: int) -> None:
    world = World(windows=(8,), context=400, step_tokens=16, lookahead=lookahead, prefix_caching=False)
    world.submit(prompt(200), max_output=200)
    most = 0
    while world.scheduler.has_work:
        world.step()
        most = max(most, world.cache.usage()[0].held)
    world.check_over()
    assert most <= (8 + (1 + lookahead) * 16) // 4 + 1


def test_those_behind_do_not_take_the_blocks_that_the_first_in_line_waits_for() -> None:
    world = World(
        windows=(12,),
        block_size=1,
        spare_blocks=11,
        context=200,
        step_tokens=16,
        lookahead=1,
        policy="priority",
        prefix_caching=False,
    )
    for token in range(3):
        world.submit([token], max_output=150, priority=1)
    for _ in range(8):
        world.step()
    world.submit(prompt(150), max_output=2)
    world.run()  # which notices when the first in line starves
    world.check_over()


# --- shared prefixes


@DEPTHS
def test_a_prefix_is_computed_once_for_all_that_come_at_the_same_time(lookahead: int) -> None:
    world = World(lookahead=lookahead, step_tokens=32, max_sequences=8)
    ids = [world.submit(prompt(18), seed=choice, max_output=5) for choice in range(6)]
    world.run()
    world.check_over()
    assert [cached(world, id) for id in ids] == [0] + [16] * 5
    assert world.device.computed_tokens == 18 + 5 * 2 + 6 * 4


@DEPTHS
def test_a_shared_system_prompt_longer_than_a_step_is_computed_once(lookahead: int) -> None:
    world = World(lookahead=lookahead, step_tokens=8, max_sequences=8)
    ids = [world.submit([*prompt(30), own, own], max_output=2) for own in range(4)]
    world.run()
    world.check_over()
    assert [cached(world, id) for id in ids] == [0, 28, 28, 28]


def test_those_behind_a_parked_sequence_may_go() -> None:
    world = World(step_tokens=32)
    world.submit(prompt(18))
    parked = world.submit(prompt(18))
    other = world.submit(prompt(5, 1))
    first = plan(world)
    assert first is not None
    assert [admit.choice for admit in first.admits] == [0, 2]
    assert parked not in {sequence.id for sequence in world.scheduler._queues.running}
    second = plan(world)
    assert second is not None
    assert [admit.choice for admit in second.admits] == [1]
    world.run()
    world.check_over()
    assert cached(world, other) == 0


@pytest.mark.parametrize("end", ["cancel", "timeout", "fail"])
def test_who_waits_for_a_prefix_goes_on_alone_when_its_owner_ends(end: str) -> None:
    world = World(lookahead=1)
    owner = world.submit(prompt(30), timeout_s=5.0)
    waiter = world.submit(prompt(30))
    world.step()
    assert world.scheduler._queues.sequences[waiter].parked is not None
    if end == "cancel":
        world.cancel(owner)
    elif end == "timeout":
        world.now = 6.0
    else:
        world.fail()
    world.run()
    world.check_over()
    assert cached(world, waiter) == 0, "nothing of what the owner computed was settled"
    assert world.clients[waiter].end.finish is FinishReason.LENGTH  # type: ignore[union-attr]


def test_a_parked_sequence_can_be_cancelled() -> None:
    world = World(lookahead=1)
    world.submit(prompt(30))
    first, second = world.submit(prompt(30)), world.submit(prompt(30))
    world.step()
    assert all(world.scheduler._queues.sequences[id].parked for id in (first, second))
    world.cancel(first)
    world.cancel(second)
    world.run()
    world.check_over()


def test_prompt_logprobs_do_not_wait_for_a_prefix_they_will_not_read() -> None:
    world = World(step_tokens=64)
    world.submit(prompt(18))
    world.submit(prompt(18), prompt_logprobs=0)
    first = plan(world)
    assert first is not None
    assert len(first.admits) == 2
    world.run()
    world.check_over()


def test_salts_keep_prefixes_apart() -> None:
    world = World()
    ids = [world.submit(prompt(18), salt=salt) for salt in ("", "a", "b")]
    world.run()
    world.check_over()
    assert [cached(world, id) for id in ids] == [0, 0, 0]


# --- background


@DEPTHS
def test_foreground_takes_the_slot_of_a_background_sequence(lookahead: int) -> None:
    world = World(max_sequences=2, lookahead=lookahead)
    batch = [world.submit(prompt(3, index), max_output=40, background=True) for index in range(2)]
    for _ in range(3):
        world.step()
    interactive = world.submit(prompt(3, 7), max_output=3)
    for _ in range(6):
        world.step()
    assert world.clients[interactive].end is not None, "it waited for the background"
    world.run()
    world.check_over()
    preemptions = [world.clients[id].end.timings.preemptions for id in batch]  # type: ignore[union-attr]
    assert preemptions == [0, 1], "the last of them yields, once"


@DEPTHS
def test_foreground_takes_the_blocks_of_background_sequences(lookahead: int) -> None:
    world = World(context=32, spare_blocks=2, max_sequences=4, lookahead=lookahead)
    world.submit(prompt(24), max_output=8, background=True)
    world.step()
    interactive = world.submit(prompt(24, 1), max_output=2)
    for _ in range(8):
        world.step()
    assert world.clients[interactive].end is not None, "it waited for the background"
    world.run()
    world.check_over()


def test_a_step_with_foreground_rows_has_few_background_tokens() -> None:
    world = World(step_tokens=8, prefix_caching=False)
    world.submit(prompt(20), max_output=4, background=True)
    assert rows(plan(world)) == [(0, 0, 8, False)], "alone it has the whole budget"
    world.submit(prompt(2, 1), max_output=3)
    assert rows(plan(world)) == [(0, 8, 1, False), (1, 0, 2, True)]
    assert rows(plan(world)) == [(1, 2, 1, True), (0, 9, 1, False)]
    world.run()
    world.check_over()


def test_background_sequences_are_admitted_last() -> None:
    world = World(step_tokens=8, max_sequences=1, policy="priority")
    batch = world.submit(prompt(3), max_output=2, background=True)
    last = world.submit(prompt(3, 1), max_output=2, priority=9)
    world.run()
    assert world.clients[last].end.timings.finished <= world.clients[batch].end.timings.finished  # type: ignore[union-attr]
    assert world.clients[last].end.timings.preemptions == 0  # type: ignore[union-attr]


def test_foreground_does_not_wait_for_a_prefix_that_a_background_sequence_computes() -> None:
    world = World(step_tokens=8, context=64)
    world.submit(prompt(40), max_output=2, background=True)
    plan(world)
    interactive = world.submit(prompt(40), max_output=2)
    plan(world)
    assert world.scheduler._queues.sequences[interactive].parked is None
    world.run()
    world.check_over()


# --- drafts


@pytest.mark.parametrize(("waiting", "ahead"), [(0, 8), (1, 7), (2, None), (8, None)])
def test_if_a_quarter_waits_to_get_drafts_all_do(
    waiting: int, ahead: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many of eight rows are planned ahead. The others would take turns with those that wait."""
    world = World(lookahead=1, max_sequences=8, step_tokens=64, drafts=Random(0))
    for number in range(8):
        world.submit(prompt(3, number), max_output=9, speculation=number < waiting)
    monkeypatch.setattr(DraftBudget, "waits", True)
    assert len(rows(world.scheduler.plan())) == 8
    second = world.scheduler.plan()
    assert (None if second is None else len(second.rows)) == ahead
