"""The live feed: a stream of ticks with the figures, requests and steps of the moment."""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.flow.identity import Source
from penstock.observe.observer import Observer
from penstock.observe.performance import percentile_us
from penstock.observe.trace.records import RequestTrace
from penstock.observe.trace.replica import Totals
from penstock.observe.trace.step_window import columns_of

MAX_TICK_REQUESTS = 200
MAX_TICK_STEPS = 256
RATE_S = 1.0  # tokens per second are measured over at least that
RECENT_S = 60.0


class LiveFeed:
    """The feed of one reader. Figures count all tenants; requests and sequences are those of the reader's tenant."""

    def __init__(self, observer: Observer, *, steps: bool, tenant: str = "", source: Source | None = None) -> None:
        """`source`: the replica whose steps and KV blocks it shows; None: the journal's default."""
        self._observer = observer
        self._replica = observer.journal.replica(source)
        self._tenant = tenant
        self._steps = steps
        self._last_step = self._replica.steps.last
        self._ended = observer.journal.totals.requests
        self._rates: deque[tuple[float, int, int]] = deque()  # when, output tokens, prompt tokens

    def hello(self) -> dict[str, Any]:
        journal = self._observer.journal
        return {
            "now": journal.at(journal.clock()),
            "started_unix": journal.epoch.unix,
            "last_step": self._replica.steps.last,
        }

    def tick(self, *, ready: bool, restarts: int) -> dict[str, Any]:
        journal = self._observer.journal
        changed, dropped = self._changed_requests()
        tick: dict[str, Any] = {
            "t": journal.at(journal.clock()),
            "stats": self._stats(ready=ready, restarts=restarts),
            "requests": [self._observer.view.summary(request) for request in changed],
            "steps": None,
            "alerts": self._observer.monitor.alerts(self._tenant),
            "dropped": dropped,
        }
        if self._steps:
            ring = self._replica.steps
            begin = max(self._last_step + 1, ring.last - MAX_TICK_STEPS + 1)
            tick["dropped"] += begin - self._last_step - 1
            steps = list(ring.between(begin, ring.last))
            tick["steps"] = columns_of(journal, steps, 1, tenant=self._tenant, source=self._replica.source)
        self._last_step = self._replica.steps.last
        return tick

    def _changed_requests(self) -> tuple[list[RequestTrace], int]:
        """Requests that are open or have ended since the last tick, and how many were left out."""
        journal = self._observer.journal
        requests = journal.totals.requests
        count = min(requests - self._ended, len(journal.done))
        self._ended = requests
        ended = [journal.done[-1 - place] for place in range(count)][::-1]
        found = [one for one in (*ended, *journal.open.values()) if one.tenant == self._tenant]
        found.sort(key=lambda request: request.number)
        return found[-MAX_TICK_REQUESTS:], max(0, len(found) - MAX_TICK_REQUESTS)

    def _stats(self, *, ready: bool, restarts: int) -> dict[str, Any]:
        journal = self._observer.journal
        totals, level, now = journal.totals, self._replica.level, journal.clock()
        out, prompt = self._rate(now, totals)
        last = self._observer.history.points[-1] if self._observer.history.points else None
        first = sorted(seconds for t, seconds in journal.first_tokens if t >= now - RECENT_S)
        return {
            "running": journal.running,
            "waiting": journal.waiting,
            "waiting_by_reason": journal.waiting_by_reason(),
            "open": len(journal.open),
            "kv": [{"total": sum(group) - group.shared, **group._asdict()} for group in level.blocks],
            "kv_use": level.kv_use,
            "tokens_per_s": out,
            "prompt_tokens_per_s": prompt,
            "steps": self._replica.steps.last,
            "step_us_mean": round(last.step_s * 1e6 / last.steps) if last and last.steps else None,
            "batch_mean": round(last.rows / last.steps, 2) if last and last.steps else None,
            "preemptions": totals.preemptions,
            "prefix_hit_tokens": totals.hit_tokens,
            "prompt_tokens": totals.prompt_tokens,
            "output_tokens": totals.output_tokens,
            "evictions": level.evictions,
            "ttft_us_p50": percentile_us(first, 0.5),
            "ttft_us_p95": percentile_us(first, 0.95),
            "requests": totals.requests,
            "errors": totals.errors,
            "gpu": last.gpu if last else None,
            "ready": ready,
            "restarts": restarts,
        }

    def _rate(self, now: float, totals: Totals) -> tuple[float, float]:
        self._rates.append((now, totals.output_tokens, totals.prompt_tokens))
        while len(self._rates) > 2 and self._rates[1][0] <= now - RATE_S:
            self._rates.popleft()
        then, out, prompt = self._rates[0]
        span = now - then
        if span <= 0:
            return 0.0, 0.0
        return round((totals.output_tokens - out) / span, 1), round((totals.prompt_tokens - prompt) / span, 1)
