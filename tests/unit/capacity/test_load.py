import heapq
import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.capacity.device import PRESETS as DEVICES
from penstock.capacity.formats import FORMATS
from penstock.capacity.load import Replica, Workload, erlang_c, per_million, queue, replicas_for
from penstock.capacity.question import question
from penstock.capacity.shape import PRESETS
from penstock.capacity.speed import Speed

SPEED = Speed(PRESETS["llama-3.1-8b"], DEVICES["h100-sxm"], FORMATS["bfloat16"], 16, 1, 8192, 0.5, 0.7)
REPLICA = Replica(SPEED, Workload(1024, 256))


def test_erlang_c_of_the_textbooks() -> None:
    assert erlang_c(1, 0.8) == pytest.approx(0.8)  # one server: as long as it is busy
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.409, abs=0.001)  # the table's value for 10 agents and 8 erlangs


def test_the_queue_of_one_server() -> None:
    """M/M/1: the mean wait is ρ / (μ - λ), and P(W > t) = ρ exp(-(μ - λ) t)."""
    line = queue(0.5, 1, 1.0)
    assert line.utilisation == 0.5
    assert line.wait_mean_s == pytest.approx(1.0)
    assert line.wait_p95_s == pytest.approx(math.log(0.5 / 0.05) / 0.5)


def test_a_queue_that_cannot_keep_up_has_no_end() -> None:
    line = queue(2.0, 2, 1.0)
    assert not line.stable
    assert line.wait_p95_s == math.inf


def test_against_a_simulation() -> None:
    """40,000 arrivals at 4 slots that are taken 80% of the time."""
    dice, slots, rate, stay = random.Random(3), 4, 3.2, 1.0
    free_at, now, waits = [0.0] * slots, 0.0, []
    for _ in range(40_000):
        now += dice.expovariate(rate)
        begin = max(now, heapq.heappop(free_at))
        waits.append(begin - now)
        heapq.heappush(free_at, begin + dice.expovariate(1 / stay))
    told = queue(rate, slots, stay)
    assert sum(wait > 0 for wait in waits) / len(waits) == pytest.approx(told.wait_probability, rel=0.08)
    assert sum(waits) / len(waits) == pytest.approx(told.wait_mean_s, rel=0.15)
    assert sorted(waits)[int(0.95 * len(waits))] == pytest.approx(told.wait_p95_s, rel=0.15)


@given(st.floats(0.01, 1e4), st.integers(1, 200), st.floats(0.01, 100), st.floats(0.05, 0.95), st.floats(0, 10))
def test_the_fewest_replicas_that_are_enough(
    rate: float, slots: int, stay: float, utilisation: float, wait: float
) -> None:
    count = replicas_for(rate, slots, stay, utilisation=utilisation, wait_p95_s=wait)
    if count is None:
        return
    line = queue(rate / count, slots, stay)
    assert line.utilisation <= utilisation
    assert line.wait_p95_s <= wait
    if count > 1:
        fewer = queue(rate / (count - 1), slots, stay)
        assert fewer.utilisation > utilisation or fewer.wait_p95_s > wait


def test_more_requests_a_second_than_any_fleet_takes() -> None:
    assert replicas_for(1e6, 1, 100.0, utilisation=0.5, wait_p95_s=1) is None


def test_littles_law() -> None:
    """At the rate a replica has at batch b, b requests are in flight."""
    for batch in (1, 8, 64):
        rate = 1 / REPLICA.device_s(batch)
        assert REPLICA.in_flight(rate, 512) == pytest.approx(batch, rel=1e-6)
    assert REPLICA.in_flight(0.001, 512) == pytest.approx(0.001 * REPLICA.stay_s(1))


def test_a_request_alone_pays_its_prefill_and_its_steps() -> None:
    steps = 256 * SPEED.step(1, 1024 + 128).seconds
    assert REPLICA.stay_s(1) == pytest.approx(SPEED.prefill(1024).seconds + steps)
    assert REPLICA.request_tokens_per_s(1) == pytest.approx(256 / steps)


def test_speeds_and_the_largest_batch() -> None:
    speeds = [REPLICA.request_tokens_per_s(batch) for batch in range(1, 200)]
    assert speeds == sorted(speeds, reverse=True)
    batch = REPLICA.largest_batch(512, 40.0)
    assert REPLICA.request_tokens_per_s(batch) >= 40.0 > REPLICA.request_tokens_per_s(batch + 1)
    assert REPLICA.largest_batch(512, None) == 512
    assert REPLICA.largest_batch(512, 1e9) == 0


def test_cost_is_time_times_price() -> None:
    """A device for 3.60 an hour costs 0.001 a second: at 1,000 tokens a second a million takes 1,000 of them."""
    assert per_million(3.6, 1, 1 / 1000) == pytest.approx(1.0)
    assert per_million(3.6, 4, 1 / 1000) == pytest.approx(4.0)


def test_near_what_was_measured() -> None:
    """docs/PERFORMANCE.md, one H200, this shape: the defaults of a question have to be good for something."""
    asked = question({"model": "llama-3.1-8b", "hardware": "h200-sxm"})
    efficiencies = asked.compute_efficiency, asked.bandwidth_efficiency
    speed = Speed(PRESETS["llama-3.1-8b"], DEVICES["h200-sxm"], FORMATS["bfloat16"], 16, 1, 8192, *efficiencies)
    for (batch, context), measured_ms in {
        (1, 128): 4.14,
        (8, 512): 4.42,
        (64, 2048): 8.95,
        (128, 2048): 14.1,
        (256, 512): 12.35,
    }.items():
        assert speed.step(batch, context).seconds * 1e3 == pytest.approx(measured_ms, rel=0.3)
    for tokens, measured_ms in {1024: 23.2, 4096: 90.3, 16384: 461.3}.items():
        assert speed.prefill(tokens).seconds * 1e3 == pytest.approx(measured_ms, rel=0.15)
    work = Replica(speed, Workload(512, 256))
    assert 256 / work.device_s(512) == pytest.approx(11_148, rel=0.2)
