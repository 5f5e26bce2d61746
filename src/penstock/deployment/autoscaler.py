"""Adds and removes replicas of the models that have `max_replicas`, as `deployment.scale_policy` decides."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import State
from penstock.deployment.scale_policy import (
    DEFAULT_PROMPT_TOKENS_PER_S,
    DEFAULT_TTFT_S,
    LoadSnapshot,
    ScaleState,
    decide,
    demand,
)

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks at the load
LEARNING = 0.2  # weight of the latest measurement of a replica's speed
RETRY_S = 30.0  # after replicas could not be started


class PromptSpeed:
    """Prompt tokens per second of one replica of a model, measured while prompts wait."""

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None
        self._seen: dict[str, tuple[float, int, bool]] = {}  # by replica: when, answered prompt tokens, any waiting

    def look(self, model: LocalModel, now: float) -> None:
        seen, self._seen = self._seen, {}
        for replica in model.replicas.replicas:
            waiting = replica.load().open_tokens > 0
            self._seen[replica.name] = (now, replica.answered_tokens, waiting)
            before = seen.get(replica.name)
            if before is not None and before[2] and waiting and now > before[0]:
                self._learn((replica.answered_tokens - before[1]) / (now - before[0]))

    def _learn(self, speed: float) -> None:
        """0 is no measurement: long prompts are answered after several looks."""
        if speed > 0:
            known = self.tokens_per_s
            self.tokens_per_s = speed if known is None else known + LEARNING * (speed - known)


class Autoscaler:
    """One per server. Belongs to one event loop."""

    def __init__(
        self,
        models: Callable[[], Iterable[LocalModel]],
        *,
        ttft_target_s: float | None = None,
        slo_window_s: float = 300.0,
        missed_slo: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`missed_slo` names an objective that is missed now and that more replicas would help; None: there is none."""
        self._models = models
        self._ttft_target_s = ttft_target_s or DEFAULT_TTFT_S
        self._slo_window_s = slo_window_s
        self._missed_slo = missed_slo
        self._clock = clock
        self._states: dict[str, ScaleState] = {}  # by model
        self._speeds: dict[str, PromptSpeed] = {}
        self._failures: dict[str, tuple[int, float]] = {}  # starts that failed so far, and when that was noticed

    async def run(self) -> None:
        """Until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:  # scaling must not break serving
                logger.exception("autoscaling failed")

    async def look(self) -> None:
        """Take a snapshot of every model and follow the decisions, without waiting for engines to start or drain."""
        now = self._clock()
        models = list(self._models())
        for table in (self._states, self._speeds, self._failures):
            for name in table.keys() - {model.name for model in models}:
                del table[name]
        for model in models:
            self._speeds.setdefault(model.name, PromptSpeed()).look(model, now)
            limits = model.replicas.limits
            if limits is None or model.state is not State.READY:  # `deployment.residency` loads and wakes models
                self._states.pop(model.name, None)
                continue
            state, decision = decide(limits, self._states.get(model.name, ScaleState()), self.snapshot(model))
            if decision is not None and decision.target > model.replicas.count and self._just_failed(model, now):
                continue
            self._states[model.name] = state
            if decision is not None:
                try:
                    model.replicas.scale(decision.target, decision.reason)
                except OSError as error:  # no process can be started
                    model.replicas.start_failures += 1
                    logger.error("%s cannot be scaled to %d replicas: %s", model.name, decision.target, error)

    def _just_failed(self, model: LocalModel, now: float) -> bool:
        """Whether a replica could not be started, less than RETRY_S ago."""
        count, noticed = self._failures.get(model.name, (0, -RETRY_S))
        if model.replicas.start_failures != count:
            noticed = now
            self._failures[model.name] = (model.replicas.start_failures, now)
        return now - noticed < RETRY_S

    def snapshot(self, model: LocalModel) -> LoadSnapshot:
        replicas = model.replicas
        speed = self._speeds.get(model.name)
        return LoadSnapshot(
            now=self._clock(),
            replicas=replicas.count if replicas.replicas else 0,
            open=replicas.open,
            queued_tokens=sum(one.load().open_tokens for one in replicas.replicas),
            slots=replicas.facts.get("max_sequences", 1),
            prompt_tokens_per_s=(speed.tokens_per_s if speed is not None else None) or DEFAULT_PROMPT_TOKENS_PER_S,
            ttft_target_s=self._ttft_target_s,
            missed_slo=self._missed_slo(),
            slo_window_s=self._slo_window_s,
        )

    def demand(self, model: LocalModel) -> float:
        """In replicas, for all local models, including models with a fixed number of replicas."""
        return demand(self.snapshot(model))
