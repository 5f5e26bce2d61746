"""Picks a deployment for each request: takes a snapshot, lets a policy decide, records the decision.

The router remembers the requests that it sent to each deployment. When a ticket ends (`settle`), it learns whether the
deployment failed, how long its first token took, and whether the expected prefix was cached.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from penstock.deployment.prefix_tracker import prompt_keys
from penstock.deployment.protocol import Call, Deployment, Load, ServedModel, State
from penstock.deployment.ticket import Ticket
from penstock.errors import EngineDied, PenstockError, QueueFull, UpstreamBusy, UpstreamFailed, UpstreamTimeout
from penstock.flow import FinishReason
from penstock.flow.identity import Source
from penstock.flow.routing import Decision
from penstock.gateway.breaker import BreakerState
from penstock.gateway.candidate import Candidate, Demand
from penstock.gateway.decision import BY_PREFIX, decide
from penstock.gateway.track import DeploymentTrack

logger = logging.getLogger(__name__)

DEFAULT_SLOT_S = 1.0  # that a sequence runs: until some have ended
# What another attempt may mend.
RETRYABLE = (EngineDied, QueueFull, UpstreamBusy, UpstreamFailed, UpstreamTimeout)


class Router:
    """One per server. Belongs to one event loop."""

    def __init__(
        self,
        policy: str = "prefix",
        *,
        secret: bytes = b"",
        region: str | None = None,
        ttft_target_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policy` chooses among the replicas of a model. `secret` is the server's (`flow.prefix`). `region` is the
        label that is preferred."""
        self.policy = policy
        self.region = region
        self.ttft_target_s = ttft_target_s
        self.on_sent: Callable[[Source, Sequence[bytes]], None] | None = None  # a replica got a prompt of these keys
        self.tracks: dict[str, DeploymentTrack] = {}  # by name of the deployment
        self._secret = secret
        self._clock = clock

    def track(self, name: str) -> DeploymentTrack:
        if (known := self.tracks.get(name)) is None:
            known = self.tracks[name] = DeploymentTrack(self._clock)
        return known

    def forget(self, model: str) -> None:
        """A model was removed."""
        for name in [name for name in self.tracks if name.rpartition("/")[0] == model]:
            del self.tracks[name]

    # --- decisions

    def pick(self, deployments: Sequence[Deployment], call: Call) -> Deployment:
        """A `deployment.protocol.Pick` for the replicas of a model. One that is blocked is taken if all are: the model
        has no other."""
        start = time.monotonic()
        keys = self._keys(deployments, call, self.policy)
        prompt = len(call.active_requests[0].submits[0].tokens) if keys else 0
        candidates = [self.candidate(one, keys, prompt) for one in deployments]
        demand = self.demand(call)
        decision = decide(demand, candidates, self.policy)
        if decision.chosen is None:
            decision = decide(demand, [_unblocked(one) for one in candidates], self.policy)
        place = next(place for place, one in enumerate(deployments) if one.name == decision.chosen)
        self._record(decision, candidates)
        call.route.decisions.append(decision)
        chosen = deployments[place]
        call.keys, call.cached_tokens = keys, candidates[place].cached_tokens or 0
        if keys and chosen.prefixes is not None:
            chosen.prefixes.add(keys)
            if self.on_sent is not None:
                self.on_sent(chosen.source, keys)
        self.track(chosen.name).recent.add(candidates[place].uncached_tokens(demand))
        call.route.spans.append((start, time.monotonic()))
        return chosen

    def demand(self, call: Call) -> Demand:
        params = call.requests[0].params
        return Demand(
            prompt_tokens=sum(len(active.submits[0].tokens) for active in call.active_requests),
            max_output=params.max_tokens,
            region=self.region,
            ttft_target_s=self.ttft_target_s,
        )

    def candidate(self, deployment: Deployment, keys: Sequence[bytes] = (), prompt_tokens: int = 0) -> Candidate:
        """A deployment as policies see it now, for a prompt of these block keys."""
        track, load, prefixes = self.track(deployment.name), deployment.load(), deployment.prefixes
        state = deployment.state
        blocked = track.breaker.blocked if state is State.READY else state.value
        return Candidate(
            name=deployment.name,
            model=deployment.card.name,
            blocked=blocked,
            queued_tokens=load.open_tokens,
            recent_tokens=track.recent.tokens,
            load_age_s=None if load.reported is None else self._clock() - max(load.reported, track.busy_since),
            busy=load.open > 0,
            cached_tokens=None if prefixes is None or not keys else prefixes.cached_tokens(keys, prompt_tokens),
            prefix_trusted=prefixes is None or prefixes.trusted,
            prefill_per_s=track.prefill_per_s,
            wait_s=_wait_s(load, track),
            base_ttft_s=0.0 if prefixes is not None else track.ttft_s or 0.0,
            price=deployment.card.price,
            region=deployment.card.region,
        )

    def _keys(self, deployments: Sequence[Deployment], call: Call, policy: str) -> list[bytes]:
        """The block keys of the first prompt, if they are of use."""
        size = next((one.prefixes.block_size for one in deployments if one.prefixes is not None), None)
        if size is None or policy not in BY_PREFIX or not call.active_requests:
            return []
        submit = call.active_requests[0].submits[0]
        return prompt_keys(self._secret, submit.tenant, submit.salt, submit.tokens, size, submit.adapter)

    def _record(self, decision: Decision, candidates: Sequence[Candidate]) -> None:
        """Count it, and log a signal when it becomes stale and when it is back."""
        for one in candidates:
            track = self.track(one.name)
            track.decisions += one.name == decision.chosen
            for name, stale in (("stale_load", one.stale_load), ("stale_prefix", not one.prefix_trusted)):
                if stale != getattr(track, name):
                    setattr(track, name, stale)
                    what = "load reports" if name == "stale_load" else "cached prefixes"
                    logger.warning("routing: %s of %s are %s", what, one.name, "stale" if stale else "back")

    def open_circuit(self, model: ServedModel) -> UpstreamFailed | UpstreamBusy | None:
        """Why it is not asked: the circuit breakers of all its deployments are open, or held."""
        breakers = [self.track(one.name).breaker for one in model.deployments]
        if not breakers or any(one.blocked is None for one in breakers):
            return None
        first = min(breakers, key=lambda one: one.wait_s)
        kind = UpstreamBusy if first.state is BreakerState.HELD else UpstreamFailed
        error = kind(f"{model.card.name} takes no requests: {first.blocked}")
        error.retry_after_s = first.wait_s
        return error

    # --- outcomes

    def begin(self, ticket: Ticket) -> None:
        """A deployment has it."""
        if ticket.deployment is not None:
            track = self.track(ticket.deployment.name)
            track.breaker.begin()
            if ticket.deployment.load().open <= len(ticket.sequences):  # an idle engine had nothing to report
                track.busy_since = self._clock()

    def settle(self, ticket: Ticket) -> None:
        """A ticket has ended, or its client has gone."""
        if ticket.deployment is None or ticket.settled:
            return
        ticket.settled = True
        track, error = self.track(ticket.deployment.name), ticket.error
        if isinstance(error, RETRYABLE):
            self.fail(ticket.deployment.name, error)
            return
        first = ticket.active_requests[0]
        choice = first.choices[0]
        if choice.finish in (None, FinishReason.CANCELLED, FinishReason.ERROR):  # that says nothing about it
            track.breaker.abandon()
            return
        track.breaker.succeed()
        if choice.timings is not None and first.cached_limit is None:
            track.observe(len(first.submits[0].tokens) - first.cached_tokens, choice.timings)
        call, prefixes = ticket.call, ticket.deployment.prefixes
        if call is not None and call.keys and prefixes is not None:
            prefixes.correct(call.cached_tokens, first.found_tokens)

    def fail(self, name: str, error: PenstockError) -> None:
        """An attempt at a deployment failed. A pause that it asked for is granted."""
        track = self.track(name)
        track.failures += 1
        if error.retry_after_s is not None:
            track.breaker.hold(error.retry_after_s)
        elif isinstance(error, QueueFull):  # it works as fast as it can
            track.breaker.abandon()
        else:
            track.breaker.fail()


def _wait_s(load: Load, track: DeploymentTrack) -> float:
    """Predicted, until a slot is free: they come free in turn."""
    running = max(load.open - (load.waiting or 0), 1) if load.waiting else load.slots
    return load.ahead * (track.slot_s or DEFAULT_SLOT_S) / (running or 1)


def _unblocked(candidate: Candidate) -> Candidate:
    return replace(candidate, blocked=None)
