"""A replica under load: requests per second, queueing delay, and the number of replicas for a rate.

With b requests in flight, each costs the device its prefill and its share of `output` decode steps:

    D(b) = prefill + output · step(b) / b        device time of a request
    S(b) = b · D(b)                              how long it stays; b / S(b) = 1 / D(b) requests a second (Little)

The queue in front is M/M/c: Poisson arrivals, c slots, each held for S(c) on average; Erlang's C says who has to wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.capacity.speed import Speed

TAIL = 0.05  # waits are given at the 95th percentile
MAX_REPLICAS = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    prompt_tokens: int
    output_tokens: int
    cached_tokens: float = 0.0

    @property
    def context(self) -> float:
        """Mean length of a sequence while it decodes."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class Replica:
    speed: Speed
    work: Workload

    @property
    def prefill_s(self) -> float:
        return self.speed.prefill(self.work.prompt_tokens, self.work.cached_tokens).seconds

    def step_s(self, batch: float) -> float:
        return self.speed.step(batch, self.work.context).seconds

    def device_s(self, batch: float) -> float:
        return self.prefill_s + self.work.output_tokens * self.step_s(batch) / batch

    def stay_s(self, batch: float) -> float:
        return batch * self.device_s(batch)

    def request_tokens_per_s(self, batch: float) -> float:
        """Of one request after its first token, with the prefills of others in between."""
        return self.work.output_tokens / (self.stay_s(batch) - self.prefill_s)

    def first_token_s(self, batch: float) -> float:
        """TTFT without queueing: the rest of the running step, and the request's own prefill."""
        return self.prefill_s + (self.step_s(batch) if batch > 1 else 0.0)

    def largest_batch(self, most: int, at_least: float | None) -> int:
        """The largest batch up to `most` at which each request gets `at_least` tokens per second; 0: none does."""
        if at_least is None:
            return most
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_tokens_per_s(middle) >= at_least:
                low = middle
            else:
                high = middle - 1
        return low

    def in_flight(self, rate: float, most: int) -> float:
        """The mean batch at `rate` requests per second, which must be below capacity: b = rate · S(b)."""
        low, high = 0.0, float(most)
        for _ in range(60):
            middle = (low + high) / 2
            if rate * self.stay_s(max(1.0, middle)) > middle:
                low = middle
            else:
                high = middle
        return high


@dataclass(frozen=True, slots=True)
class Queue:
    """Of one replica."""

    utilisation: float  # 1 and above: it grows without end
    wait_probability: float = 1.0
    wait_mean_s: float = math.inf
    wait_p95_s: float = math.inf

    @property
    def stable(self) -> bool:
        return self.utilisation < 1


def erlang_c(slots: int, offered: float) -> float:
    """Probability that an arrival finds all slots taken and waits; `offered` is rate × stay, below `slots`."""
    blocking = 1.0  # Erlang's B by its recursion, which neither overflows nor cancels
    for taken in range(1, slots + 1):
        blocking = offered * blocking / (taken + offered * blocking)
    return blocking / (1 - offered / slots * (1 - blocking))


def queue(rate: float, slots: int, stay_s: float) -> Queue:
    offered = rate * stay_s
    if offered >= slots:
        return Queue(offered / slots)
    waits = erlang_c(slots, offered)
    drain_s = stay_s / (slots - offered)  # P(wait > t) = waits · exp(-t / drain_s)
    p95 = max(0.0, drain_s * math.log(waits / TAIL)) if waits > 0 else 0.0
    return Queue(offered / slots, waits, waits * drain_s, p95)


def replicas_for(rate: float, slots: int, stay_s: float, *, utilisation: float, wait_p95_s: float) -> int | None:
    """The fewest replicas that keep both limits, each with its share of the rate; None: more than MAX_REPLICAS."""

    def enough(count: int) -> bool:
        one = queue(rate / count, slots, stay_s)
        return one.utilisation <= utilisation and one.wait_p95_s <= wait_p95_s

    high = 1
    while not enough(high):
        high *= 2
        if high > MAX_REPLICAS:
            return None
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def per_million(hour_price: float, devices: float, seconds_per_token: float) -> float:
    """Cost of a million tokens, each of which takes the devices `seconds_per_token`."""
    return hour_price / 3600 * devices * seconds_per_token * 1e6
