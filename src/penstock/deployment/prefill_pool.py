"""The prefill replicas of a model, for its decode replicas: which prompts they compute, and what became of that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.deployment.handoff import Handoff
from penstock.deployment.protocol import Call, Pick, Role
from penstock.deployment.replica import Replica
from penstock.errors import InvalidSetting
from penstock.flow import Submit
from penstock.flow.prefix import root_key
from penstock.observe.events import Emit

SUMS = ("transfers", "blocks", "bytes", "seconds")


@dataclass(slots=True)
class TransferTotals:
    """Since the server started. `sums`: "transfers" in which something arrived, their "blocks", "bytes" and "seconds",
    from the end of the prefill to that of the import."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0))
    failures: Counter[str] = field(default_factory=Counter)  # handoffs that did not go to their end, by cause

    def add(self, blocks: int, num_bytes: int, seconds: float) -> None:
        for name, more in zip(SUMS, (blocks > 0, blocks, num_bytes, seconds), strict=True):
            self.sums[name] += more


def role_of(number: int, prefill_replicas: int) -> Role | None:
    """Of the replica `number` of a model: the first ones compute prompts."""
    if not prefill_replicas:
        return None
    return Role.PREFILL if number < prefill_replicas else Role.DECODE


class PrefillPool:
    """Belongs to one event loop."""

    def __init__(self, secret: bytes, min_tokens: int, emit: Emit | None = None) -> None:
        """`secret` is the server's (`flow.prefix`). `min_tokens` of a prompt, not cached, are worth a handoff."""
        self.emit = emit
        self.totals = TransferTotals()
        self._secret = secret
        self._min_tokens = min_tokens

    def root_of(self, submit: Submit) -> bytes:
        return root_key(self._secret, submit.tenant, submit.salt, submit.adapter)

    def plan(self, call: Call, decoder: Replica, prefillers: Sequence[Replica], pick: Pick) -> Handoff | None:
        """The handoff for a call that `decoder` will work on; None: it computes the prompt itself. `pick` chooses
        among the prefill replicas, which are ready."""
        if not prefillers or decoder.role is not Role.DECODE or len(call.active_requests) != 1:
            return None
        active = call.active_requests[0]
        submit = active.submits[0]
        if submit.task != "generate" or submit.params.prompt_logprobs is not None:  # these read no cached prefix
            return None
        cached = call.cached_tokens if decoder.prefixes is not None and decoder.prefixes.trusted else 0
        if len(submit.tokens) - 1 - cached < self._min_tokens:
            return None
        room = min(map(_room, (decoder, *prefillers)))
        if len(submit.tokens) > room + decoder.facts["block_size"]:  # its blocks, all but the last, could not be held
            return None
        probe = Call(call.requests, call.active_requests)
        chosen = pick(prefillers, probe)
        assert isinstance(chosen, Replica)
        named = [replace(one, policy=f"{one.policy} (prefill)") for one in probe.route.decisions]
        call.route.decisions[-1:-1] = named  # the last one says who answers
        return Handoff(self, active, chosen, decoder, cached)

    def check(self, replicas: Sequence[Replica]) -> None:
        """Raises InvalidSetting if engines, which are up, cannot read each other's blocks or have no room for them."""
        least = min(replicas, key=_room)
        if _room(least) < self._min_tokens:
            context, size = least.facts["context"], least.facts["kv_tokens"]
            raise InvalidSetting(
                f"prefill_replicas: the KV cache of {least.name} has {size:,} tokens, and one sequence of the whole "
                f"context takes {context:,}: the rest is too small for a prompt of prefill_min_tokens "
                f"({self._min_tokens}). Set a smaller context, or more kv_memory",
                param="prefill_replicas",
            )
        layouts = {replica.name: replica.facts.get("kv_layout") for replica in replicas}
        if len(set(layouts.values())) > 1:
            listed = "; ".join(f"{name}: {layout}" for name, layout in layouts.items())
            raise InvalidSetting(
                f"prefill_replicas: the replicas' KV blocks differ: {listed}", param="prefill_replicas"
            )


def _room(replica: Replica) -> int:
    """Tokens of a prompt, in full blocks, that may be at the replica for a transfer."""
    room: int = replica.facts["kv_transfer_tokens"]
    return room
