"""Service level objectives: measured over a sliding window, with an alert while one is missed.

| objective | measured over the window |
|---|---|
| ttft_p95 | 95th percentile of the seconds from acceptance to the first token |
| tokens_per_s_p50 | median of the answers' tokens per second, from first token to last |
| error_rate | requests that the server failed, of all that it accepted |
| kv_use, queue_depth | mean over the window's points |
| gpu_memory | largest share of the GPU's memory that all processes use, of the window's points |
| spend_rate | a tenant's spend, as a multiple of its mean of the last day: the largest of all tenants' |
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from penstock.observe.history import History, Point
from penstock.observe.performance import decode_rows_and_prompt_tokens, percentile, recent_steps
from penstock.observe.slo import causes
from penstock.observe.slo.causes import Cause
from penstock.observe.slo.spend import SpendRates
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.records import RequestTrace
from penstock.settings import ObserveSettings

logger = logging.getLogger(__name__)

ENOUGH = 5  # requests that a percentile or a rate needs before it raises an alert
CALM = 2  # evaluations in a row that resolve an alert
HELPED_BY_REPLICAS = ("ttft_p95", "tokens_per_s_p50", "queue_depth", "kv_use")
MAX_RESOLVED = 100  # alerts


@dataclass(frozen=True, slots=True)
class Objective:
    name: str
    title: str
    unit: str
    target: float | None
    at_least: bool = False

    def met(self, value: float) -> bool:
        assert self.target is not None
        return value >= self.target if self.at_least else value <= self.target

    def format_value(self, value: float) -> str:
        return f"{value:.3g} {self.unit}" if self.unit != "ratio" else f"{100 * value:.3g}%"


@dataclass(slots=True)
class Alert:
    id: int
    objective: Objective
    since: float
    value: float
    cause: Cause
    until: float | None = None
    calm: int = 0

    @property
    def message(self) -> str:
        assert self.objective.target is not None
        sign = "below" if self.objective.at_least else "above"
        value, target = self.objective.format_value(self.value), self.objective.format_value(self.objective.target)
        return f"{self.objective.title} is {value}, {sign} {target}: {self.cause.evidence}"


class SloMonitor:
    def __init__(
        self,
        journal: Journal,
        history: History,
        settings: ObserveSettings,
        ready: Callable[[], bool],
        listeners: Sequence[Callable[[dict[str, Any]], None]] = (),
        spend: SpendRates | None = None,
    ) -> None:
        """`listeners` are called with every alert when it begins and when it ends. `spend`: None if no request has a
        price."""
        self.window_s = settings.slo_window_s
        self.objectives: tuple[Objective, ...] = (
            Objective("ttft_p95", "TTFT p95", "s", settings.slo_ttft_p95),
            Objective("tokens_per_s_p50", "Generation tok/s p50", "tokens/s", settings.slo_tokens_per_s_p50, True),
            Objective("error_rate", "Error rate", "ratio", settings.slo_error_rate),
            Objective("kv_use", "KV cache usage", "ratio", settings.slo_kv_use),
            Objective("gpu_memory", "GPU memory usage", "ratio", settings.slo_gpu_memory),
            Objective("queue_depth", "Queue depth", "requests", settings.slo_queue_depth),
        )
        if spend is not None:
            self.objectives += (Objective("spend_rate", "Spend against its past", "times", settings.slo_spend_rate),)
        self._spend = spend
        self.webhook = settings.slo_webhook is not None
        self.open: dict[str, Alert] = {}
        self.resolved: deque[Alert] = deque(maxlen=MAX_RESOLVED)
        self._journal, self._history, self._ready = journal, history, ready
        self._listeners = listeners
        self._numbers = itertools.count(1)

    @property
    def missed_for_load(self) -> str | None:
        """An objective with an open alert that more replicas would help; None: there is none."""
        return next((name for name in HELPED_BY_REPLICAS if name in self.open), None)

    def evaluate(self) -> None:
        """Raise and resolve alerts by the window that ends now."""
        for objective in self.objectives:
            if objective.target is None:
                continue
            value, samples = self._measure(objective.name)
            missed = value is not None and samples >= self._enough(objective) and not objective.met(value)
            if missed and value is not None:
                self._raise_alert(objective, value)
            elif objective.name in self.open:
                self._resolve(self.open[objective.name], value)

    def status(self, tenant: str = "") -> dict[str, Any]:
        """Values count all requests, but those of money the tenant's own; examples are the tenant's."""
        objectives = []
        for objective in self.objectives:
            value, samples = self._measure(objective.name, tenant)
            known = value is not None and objective.target is not None
            objectives.append(
                {
                    "name": objective.name,
                    "title": objective.title,
                    "unit": objective.unit,
                    "op": ">=" if objective.at_least else "<=",
                    "target": objective.target,
                    "value": None if value is None else round(value, 6),
                    "samples": samples,
                    "ok": objective.met(value) if known and value is not None else None,
                }
            )
        return {
            "t": self._journal.at(self._journal.clock()),
            "window_s": self.window_s,
            "objectives": objectives,
            "alerts": self.alerts(tenant),
            "recent": [self._of_tenant(tenant, alert) for alert in reversed(self.resolved) if _concerns(alert, tenant)],
            "webhook": self.webhook,
        }

    def alerts(self, tenant: str = "") -> list[dict[str, Any]]:
        return [self._of_tenant(tenant, alert) for alert in self.open.values() if _concerns(alert, tenant)]

    def alert_json(self, alert: Alert) -> dict[str, Any]:
        """With examples of all tenants: for the operator."""
        return {
            "id": alert.id,
            "objective": alert.objective.name,
            "since": self._journal.at(alert.since),
            "until": self._journal.at(alert.until),
            "value": round(alert.value, 6),
            "target": alert.objective.target,
            "cause": alert.cause.name,
            "message": alert.message,
            "tenant": alert.cause.tenant,
            "requests": alert.cause.requests,
        }

    def _of_tenant(self, tenant: str, alert: Alert) -> dict[str, Any]:
        return {**self.alert_json(alert), "requests": self._journal.ids_of_tenant(tenant, alert.cause.requests)}

    # --- alerts

    def _raise_alert(self, objective: Objective, value: float) -> None:
        cause = self._cause(objective)
        if (alert := self.open.get(objective.name)) is not None:
            alert.value, alert.cause, alert.calm = value, cause, 0
            return
        alert = Alert(next(self._numbers), objective, self._journal.clock(), value, cause)
        self.open[objective.name] = alert
        logger.warning("objective missed: %s (%s)", alert.message, cause.name)
        self._notify(alert)

    def _resolve(self, alert: Alert, value: float | None) -> None:
        alert.calm += 1
        if alert.calm < CALM:
            return
        alert.until = self._journal.clock()
        del self.open[alert.objective.name]
        self.resolved.append(alert)
        now = "without data" if value is None else f"{value:.4g}"
        logger.info("objective met again: %s is %s", alert.objective.title, now)
        self._notify(alert)

    def _notify(self, alert: Alert) -> None:
        for listener in self._listeners:
            listener(self.alert_json(alert))

    # --- measuring

    def _measure(self, name: str, tenant: str | None = None) -> tuple[float | None, int]:
        """The value over the window, and the number of requests or points in it. `tenant`: whose money; None: that of
        the one whose spend has risen most."""
        if name == "spend_rate" and self._spend is not None:
            spike = self._spend.spike(self.window_s, tenant)
            return (None, 0) if spike is None else (spike.ratio, 1)
        if name == "ttft_p95":
            begin = self._begin
            values = sorted(seconds for t, seconds in self._journal.first_tokens if t >= begin)
            return percentile(values, 0.95), len(values)
        if name == "tokens_per_s_p50":
            rates = sorted(rate for request in self._ended_requests() if (rate := request.tokens_per_s) is not None)
            return percentile(rates, 0.5), len(rates)
        if name == "error_rate":
            taken = [request for request in self._ended_requests() if request.finish != "rejected" or request.failed]
            failed = sum(request.failed for request in taken)
            return (failed / len(taken) if taken else None), len(taken)
        points = self._points()
        if name == "gpu_memory":
            shares = [one.gpu["memory_used"] / one.gpu["memory_total"] for one in points if one.gpu is not None]
            return max(shares, default=None), len(shares)
        levels: list[float] = [point.kv_use if name == "kv_use" else point.waiting for point in points]
        return (mean(levels) if levels else None), len(levels)

    def _enough(self, objective: Objective) -> int:
        return 1 if objective.name in ("kv_use", "gpu_memory", "queue_depth", "spend_rate") else ENOUGH

    def _cause(self, objective: Objective) -> Cause:
        target = objective.target or 0.0
        match objective.name:
            case "ttft_p95":
                candidates = [*self._journal.open.values(), *self._ended_requests()]
                return causes.slow_first_token(
                    self._journal, [r for r in candidates if (r.first_token_s or 0.0) > target]
                )
            case "tokens_per_s_p50":
                slow = [r for r in self._ended_requests() if r.tokens_per_s is not None and r.tokens_per_s < target]
                return causes.slow_decode(self._points(), self._prefill_share(), slow)
            case "error_rate":
                return causes.failures([request for request in self._ended_requests() if request.failed])
            case "kv_use":
                return causes.full_cache(self._points(), self._journal)
            case "gpu_memory":
                return causes.full_gpu(self._points(), self._journal)
            case "spend_rate" if self._spend is not None and (spike := self._spend.spike(self.window_s)) is not None:
                return causes.spend_spike(spike, self.window_s, [*self._ended_requests()])
        return causes.long_queue(self._points(), self._journal, ready=self._ready())

    @property
    def _begin(self) -> float:
        return self._journal.clock() - self.window_s

    def _ended_requests(self) -> Iterator[RequestTrace]:
        """Requests that ended in the window, newest first."""
        begin = self._begin
        for request in reversed(self._journal.done):
            if request.end is None or request.end < begin:
                return
            yield request

    def _points(self) -> list[Point]:
        begin = self._begin
        return [point for point in self._history.points if point.t >= begin]

    def _prefill_share(self) -> float:
        """Share of step time, in the window, of steps that computed prompt tokens."""
        begin = self._begin
        steps = [
            step
            for source in list(self._journal.replicas)
            for step in recent_steps(self._journal, source)
            if step.start >= begin
        ]
        total = sum(step.settled_us for step in steps)
        return (
            sum(step.settled_us for step in steps if decode_rows_and_prompt_tokens(step)[1]) / total if total else 0.0
        )


def _concerns(alert: Alert, tenant: str) -> bool:
    """Whether a tenant is shown an alert: not if that is about another one."""
    return alert.cause.tenant in (None, tenant)
