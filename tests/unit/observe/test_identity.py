"""Two models, one of them with two replicas, in one journal: every request, step and metric is found under its own
model and replica, and no two sequences share a number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from helpers.model_specs import small_spec
from penstock.cache import CacheManager
from penstock.deployment.protocol import Call
from penstock.deployment.replica import Replica
from penstock.engine.loop import EngineLoop
from penstock.flow import (
    Cancel,
    FinishReason,
    Frame,
    Query,
    Reply,
    Request,
    RowResult,
    SamplingParams,
    StepPlan,
    StepResult,
    Submit,
)
from penstock.flow.identity import SequenceNumbers, Source
from penstock.observe import events
from penstock.observe.history import History
from penstock.observe.metrics import PrometheusMetrics, ReplicaStatus
from penstock.observe.performance import performance_figures
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.step_window import step_window
from penstock.observe.trace.views import View, ViewedModel
from penstock.pipeline import Pipeline
from penstock.schedule import Scheduler
from penstock.store.spec import CacheGroup

SMALL, LARGE, SECOND = Source("small", 0), Source("large", 0), Source("large", 1)
OUTPUT = {SMALL: 3, LARGE: 5, SECOND: 7}  # tokens of each request there
REQUESTS = 2  # at each replica
PROMPT = [1, 2, 3, 4, 5, 6]
SPEC = small_spec(name="stub", vocab_size=16, context=64, end_tokens=(0,))


class Device:
    """Draws token 7 for every row that samples."""

    def launch(self, plan: StepPlan) -> None:
        self.plan = plan

    def collect(self) -> StepResult:
        return StepResult(self.plan.number, [RowResult([7] if row.sample else []) for row in self.plan.rows])

    def reset(self) -> None: ...


class Engine:
    """The real loop and scheduler around a stub device, one step per `receive`."""

    handles = ()
    failure = dead = None

    def __init__(self) -> None:
        self.facts: dict[str, Any] | None = {}
        self.replies: list[Frame | Reply] = []
        cache = CacheManager([CacheGroup(0, (0,))], [64], 4, True)
        scheduler = Scheduler(
            cache, step_tokens=64, max_sequences=4, max_waiting=8, policy="fcfs", lookahead=0, context=64, recorded=True
        )
        self.loop = EngineLoop(scheduler, Device())

    def submit(self, message: Submit) -> None:
        self.loop.handle(message)

    def cancel(self, message: Cancel) -> None:
        self.loop.handle(message)

    def query(self, message: Query) -> None:
        reply = self.loop.handle(message)
        assert reply is not None
        self.replies.append(reply)

    def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
        replies, self.replies = self.replies, []
        frame = self.loop.step()
        return [*replies, *([frame.packed()] if frame else [])]

    def end(self, why: str) -> None: ...

    def close(self) -> None: ...

    kill = close


class Repeat:
    """Decodes every token to one letter."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def decode(self, tokens: list[int], *, skip_special: bool = True) -> str:
        return self.letter * len(tokens)


class Server:
    """A journal, and a pipeline and replicas per model that emit into it."""

    def __init__(self) -> None:
        self.journal = Journal(SMALL, keep_texts=True)
        self.metrics = PrometheusMetrics(SMALL, self.journal)
        self.history = History(self.journal)
        models = {"small": ViewedModel(Repeat("s"), 4), "large": ViewedModel(Repeat("l"), 8)}
        self.view = View(self.journal, models.get)
        self.numbers: list[int] = []
        self.stats: dict[Source, dict[str, Any]] = {}

    async def run(self) -> None:
        numbers, emit = SequenceNumbers(), self.journal.record
        pipelines = {
            name: Pipeline(SPEC, None, None, context=64, emit=emit, model=name, numbers=numbers)
            for name in ("small", "large")
        }
        replicas = {source: Replica(Engine, source, emit) for source in OUTPUT}
        tickets = []
        for source, replica in replicas.items():
            await replica.start()
            for place in range(REQUESTS):
                name = _name(source, place)
                emit(events.Accepted(name, self.journal.clock(), f"x-{name}", "completion"))
                params = SamplingParams(max_tokens=OUTPUT[source])
                active = pipelines[source.model].accept(Request(id=name, params=params, tokens=PROMPT))
                self.numbers += [submit.number for submit in active.submits]
                tickets.append((source, active, replica.submit(Call([], [active]))))
        for source, active, ticket in tickets:
            await ticket.finished()
            submit = active.submits[0]
            ended = events.Ended(submit.number, FinishReason.LENGTH, None, len(PROMPT), 0, OUTPUT[source], "")
            emit(events.Finished(active.id, self.journal.clock(), [ended]))
            self.metrics.count_ended(source, FinishReason.LENGTH, len(PROMPT), 0, OUTPUT[source], None)
        for source, replica in replicas.items():
            self.stats[source] = await replica.ask("stats")
            replica.close()

    def scrape(self) -> dict[tuple[str, str, str], float]:
        """By name, model and replica; of samples that have no other label."""
        status = [ReplicaStatus(source, stats, 0, True) for source, stats in self.stats.items()]
        text = self.metrics.text(status, open_requests={}, tasks=1).decode()
        return {
            (sample.name, sample.labels["model"], sample.labels["replica"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.keys() == {"model", "replica"}
        }


def _name(source: Source, place: int) -> str:
    return f"{source.model}{source.replica}{place}"


@pytest.fixture(scope="module")
def server() -> Server:
    server = Server()
    asyncio.run(server.run())
    return server


def test_sequence_numbers_are_unique_per_server(server: Server) -> None:
    assert len(server.numbers) == len(set(server.numbers)) == REQUESTS * len(OUTPUT)


@pytest.mark.parametrize("source", OUTPUT)
def test_requests_are_kept_under_their_own_replica(server: Server, source: Source) -> None:
    for place in range(REQUESTS):
        request = server.journal.find(_name(source, place))
        assert request is not None
        assert request.source == source
        assert (request.prompt_tokens, request.output_tokens) == (len(PROMPT), OUTPUT[source])
        (sequence,) = request.sequences
        assert server.journal.sequences.find(sequence.number) == (request, sequence)
        shown = server.view.with_steps(request, server.view.overview(request))
        assert shown["totals"]["decode_steps"] == OUTPUT[source] - 1
        assert shown["totals"]["prefill_steps"] == 1
        assert shown["texts"]["prompts"] == [{"small": "s", "large": "l"}[source.model] * len(PROMPT)]


@pytest.mark.parametrize("source", OUTPUT)
def test_steps_are_kept_under_their_own_replica(server: Server, source: Source) -> None:
    own = {server.journal.find(_name(source, place)).sequences[0].number for place in range(REQUESTS)}  # type: ignore[union-attr]
    replica = server.journal.replica(source)
    steps = list(replica.steps.between(1, replica.steps.last))
    assert len(steps) == replica.totals.steps >= OUTPUT[source]
    assert {number for step in steps for number in step.numbers} == own
    assert replica.totals.output_tokens == REQUESTS * OUTPUT[source]
    assert replica.totals.requests == REQUESTS
    assert performance_figures(server.journal, source)["steps"] == len(steps)
    shown = step_window(server.journal, 1, replica.steps.last, 100, source=source)
    assert set(shown["rows"]["seq"]) == set(shown["sequences"]) == own
    assert shown["last"] == len(steps)
    assert replica.level.blocks[0].free + replica.level.blocks[0].cached == 63


def test_totals_of_the_server_are_those_of_all_replicas(server: Server) -> None:
    point = server.history.sample(None)
    assert point.tokens == REQUESTS * sum(OUTPUT.values())
    assert point.requests == REQUESTS * len(OUTPUT)
    assert point.steps == sum(server.journal.replica(source).steps.last for source in OUTPUT)


@pytest.mark.parametrize("source", OUTPUT)
def test_metrics_carry_model_and_replica(server: Server, source: Source) -> None:
    values, labels = server.scrape(), (source.model, str(source.replica))
    assert values["penstock_steps_total", *labels] == server.journal.replica(source).steps.last
    assert values["penstock_generation_tokens_total", *labels] == REQUESTS * OUTPUT[source]
    assert values["penstock_request_generation_tokens_sum", *labels] == REQUESTS * OUTPUT[source]
    assert values["penstock_inter_token_latency_seconds_count", *labels] == REQUESTS * (OUTPUT[source] - 1)
    assert values["penstock_prefix_cache_queries_total", *labels] == REQUESTS * len(PROMPT)
    assert values["penstock_num_requests_running", *labels] == values["penstock_kv_cache_usage_perc", *labels] == 0
    assert values["penstock_ready", *labels] == 1
    assert {key[1:] for key in values} == {(one.model, str(one.replica)) for one in OUTPUT}
