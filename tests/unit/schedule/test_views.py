"""What people see of one sequence in a small cache."""

from __future__ import annotations

from penstock.cache import CacheManager, EvictionHistory
from penstock.flow import RowResult, SamplingParams, StepResult, Submit, record
from penstock.schedule import Scheduler
from penstock.store.spec import CacheGroup
from simulation.world import World

PROMPT = list(range(10))
NUMBER = 7


def running() -> Scheduler:
    """One sequence, whose prompt has been computed: two full blocks and a half."""
    cache = CacheManager([CacheGroup(0, (0,))], [17], 4, prefix_caching=True, history=EvictionHistory())
    scheduler = Scheduler(cache, step_tokens=64, max_sequences=4, max_waiting=8, policy="fcfs", lookahead=0, context=32)
    scheduler.submit(Submit(id="x", tokens=PROMPT, params=SamplingParams(), seed=0, max_output=4, number=NUMBER))
    plan = scheduler.plan()
    assert plan is not None
    scheduler.settle(StepResult(plan.number, [RowResult([3])]))
    return scheduler


def test_the_page_map_names_blocks_by_their_sequence() -> None:
    shown = running().views.page_map("")
    assert shown["sequences"] == {NUMBER: {"id": "x", "blocks": 3, "tokens": 10, "waste_tokens": 2}}
    assert [cells for cells, _, owner in shown["groups"][0]["runs"] if owner == NUMBER] == [3]
    assert (shown["prompt_tokens"], shown["hit_tokens"]) == (len(PROMPT), 0)


def test_the_prefix_tree_marks_what_is_a_sequences_own() -> None:
    views = running().views
    (node,) = views.prefix_tree("", limit=10, numbers=[NUMBER])["nodes"]
    assert (node["tokens"], node["own"]) == (8, True)
    (node,) = views.prefix_tree("", limit=10, numbers=[])["nodes"]
    assert not node["own"]


def test_a_prompt_is_explained_by_what_is_cached() -> None:
    views = running().views
    assert views.explain("", PROMPT, "")["cached"] == 8
    parted = views.explain("", [*PROMPT[:6], 99, 99, 99], "")
    assert (parted["cached"], parted["finding"][:2]) == (4, [record.DIVERGED, 6])
    assert views.explain("", PROMPT, "another tenant's")["finding"][0] == record.NOTHING_ALIKE


def test_admins_see_what_each_tenant_was_served() -> None:
    world = World(max_sequences=1)
    for tenant, weight in (("a", 1.0), ("a", 1.0), ("b", 2.0)):
        world.submit(PROMPT, tenant=tenant, weight=weight, max_output=2)
    world.step()
    found = world.scheduler.views.tenants()
    assert found["fair"]
    rows = {row["tenant"]: row for row in found["tenants"]}
    assert (rows["a"]["running"], rows["a"]["waiting"]) == (0, 2)
    assert (rows["b"]["running"], rows["b"]["waiting"]) == (1, 0)
    assert rows["b"]["cost"] == len(PROMPT) + 1
    assert rows["b"]["counter"] == round((len(PROMPT) + 1) / 2)
    others = World(policy="fcfs")
    others.submit(PROMPT, tenant="a")
    assert others.scheduler.views.tenants() == {
        "fair": False,
        "tenants": [{"tenant": "a", "cost": 0, "running": 0, "waiting": 1}],
    }


def test_another_tenant_sees_counts_and_nothing_else() -> None:
    views = running().views
    own, other = views.page_map(""), views.page_map("other")
    assert other["sequences"] == {}
    assert {owner for _, _, owner in other["groups"][0]["runs"]} == {0}
    assert [run[:2] for run in other["groups"][0]["runs"]] == [run[:2] for run in own["groups"][0]["runs"]]
    for name in ("held_blocks", "waste_tokens", "prompt_tokens", "hit_tokens"):
        assert other[name] == own[name]
    assert (own["held_blocks"], own["waste_tokens"]) == (3, 2)
    assert views.prefix_tree("other", limit=10, numbers=[NUMBER]) == {"nodes": [], "total": 0, "shown": 0}
    for length in range(2, len(PROMPT) + 1):  # a guess that is right is answered like one that is wrong
        right, wrong = (views.explain("other", [*PROMPT[:length], *end], "") for end in ([], [90, 91, 92, 93]))
        assert right["cached"] == wrong["cached"] == 0
        assert {right["finding"][0], wrong["finding"][0]} <= {record.NOTHING_ALIKE, record.TOO_SHORT}
