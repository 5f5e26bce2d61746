"""Everything that watches, in one place: what the routes ask, and the beat that closes points and judges objectives."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from penstock.errors import PenstockError
from penstock.flow.identity import Source
from penstock.flow.record import Blocks
from penstock.observe.gpu import Gpu
from penstock.observe.history import INTERVAL_S, History
from penstock.observe.measured import percentile_us
from penstock.observe.slo import Monitor
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.records import RequestTrace
from penstock.observe.trace.replica import Totals
from penstock.observe.trace.views import View
from penstock.observe.window import drawn

logger = logging.getLogger(__name__)

ANSWER_WAIT_S = 1.0  # an engine in a long step answers later: then its last step's word stands
MAX_TICK_REQUESTS = 200
MAX_TICK_STEPS = 256
RATE_S = 1.0  # tokens per second are measured over at least that
RECENT_S = 60.0

Ask = Callable[[], Awaitable[dict[str, Any]]]


class Watch:
    def __init__(self, journal: Journal, history: History, monitor: Monitor, view: View, gpu: Gpu) -> None:
        self.journal = journal
        self.history = history
        self.monitor = monitor
        self.view = view
        self.gpu = gpu

    async def run(self, asks: Mapping[Source, Ask]) -> None:
        """Until the task is cancelled. `asks` give the stats of each replica's engine."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            for source, ask in asks.items():
                await self.refresh(source, ask)
            try:
                self.history.sample(self.gpu.read())
                self.monitor.evaluate()
            except Exception:  # whoever watches must not be the one that breaks things
                logger.exception("the watch has stumbled")

    async def refresh(self, source: Source, ask: Ask) -> None:
        """Ask a replica's engine for its gauges, if no step has brought them lately."""
        level = self.journal.replica(source).level
        if self.journal.clock() - level.t < ANSWER_WAIT_S:
            return
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                stats = await ask()
        except (PenstockError, TimeoutError):
            return
        names = Blocks._fields
        level.blocks = [Blocks(*(usage[name] for name in names)) for usage in stats["blocks"]]
        level.waiting, level.t = stats["waiting"], self.journal.clock()


class Feed:
    """One reader of the live feed. The numbers in it are of all tenants, the requests and sequences of the reader's."""

    def __init__(self, watch: Watch, *, steps: bool, tenant: str = "", source: Source | None = None) -> None:
        """`source`: the replica whose steps and KV blocks it shows; None: the journal's default."""
        self._watch = watch
        self._replica = watch.journal.replica(source)
        self._tenant = tenant
        self._steps = steps
        self._last_step = self._replica.steps.last
        self._ended = watch.journal.totals.requests
        self._rates: deque[tuple[float, int, int]] = deque()  # when, output tokens, prompt tokens

    def hello(self) -> dict[str, Any]:
        journal = self._watch.journal
        return {
            "now": journal.at(journal.clock()),
            "started_unix": journal.epoch.unix,
            "last_step": self._replica.steps.last,
        }

    def tick(self, *, ready: bool, restarts: int) -> dict[str, Any]:
        journal = self._watch.journal
        changed, left_out = self._changed()
        told: dict[str, Any] = {
            "t": journal.at(journal.clock()),
            "stats": self._stats(ready=ready, restarts=restarts),
            "requests": [self._watch.view.summary(request) for request in changed],
            "steps": None,
            "alerts": self._watch.monitor.alerts(self._tenant),
            "dropped": left_out,
        }
        if self._steps:
            ring = self._replica.steps
            begin = max(self._last_step + 1, ring.last - MAX_TICK_STEPS + 1)
            told["dropped"] += begin - self._last_step - 1
            steps = list(ring.between(begin, ring.last))
            told["steps"] = drawn(journal, steps, 1, tenant=self._tenant, source=self._replica.source)
        self._last_step = self._replica.steps.last
        return told

    def _changed(self) -> tuple[list[RequestTrace], int]:
        """All that are open, and those that have ended since the last tick; and how many had to be left out."""
        journal = self._watch.journal
        requests = journal.totals.requests
        count = min(requests - self._ended, len(journal.done))
        self._ended = requests
        ended = [journal.done[-1 - place] for place in range(count)][::-1]
        found = [one for one in (*ended, *journal.open.values()) if one.tenant == self._tenant]
        found.sort(key=lambda request: request.number)
        return found[-MAX_TICK_REQUESTS:], max(0, len(found) - MAX_TICK_REQUESTS)

    def _stats(self, *, ready: bool, restarts: int) -> dict[str, Any]:
        journal = self._watch.journal
        totals, level, now = journal.totals, self._replica.level, journal.clock()
        out, prompt = self._rate(now, totals)
        last = self._watch.history.points[-1] if self._watch.history.points else None
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
