"""What the router picks among: the deployments of a model, local replicas or upstreams, behind one protocol.

    ServedModel "smollm2"  ─► Deployment smollm2/0, smollm2/1   (engine processes)
    ServedModel "big"      ─► Deployment big/0                  (an upstream)

A ServedModel is what a client's `model` field names. It checks a request, prepares it and picks a deployment; a
Deployment does the work. Both belong to one event loop. The unit of retry is the parsed request: until its first output
has gone out, it may be submitted again, to the same model or to another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from penstock.deployment.prefix_tracker import PrefixTracker
from penstock.deployment.ticket import Ticket
from penstock.flow import Request, Vocabulary
from penstock.flow.identity import Source
from penstock.flow.routing import RouteRecord
from penstock.settings.models import Capability
from penstock.stream.active_request import ActiveRequest

if TYPE_CHECKING:
    from penstock.deployment.handoff import Handoff
    from penstock.prompt.chat_format import ChatFormat


class State(StrEnum):
    """Of a deployment. Only a READY one takes requests at once."""

    UNLOADED = "unloaded"  # no process; a request loads it
    STARTING = "starting"
    READY = "ready"
    ASLEEP = "asleep"  # the process is there, its weights and KV blocks are not; a request wakes it
    DRAINING = "draining"  # it finishes its requests and takes no more; then it goes
    RESTARTING = "restarting"  # its process died; the next one starts
    CLOSED = "closed"


class Role(StrEnum):
    """Of a replica whose model has prefill and decode pools (`deployment.prefill_pool`)."""

    PREFILL = "prefill"  # computes long prompts for the others
    DECODE = "decode"  # answers requests


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0
    cached_input: float | None = None  # None: as `input`


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a model, for clients and for the router."""

    name: str  # without `:latest`
    aliases: tuple[str, ...] = ()
    context: int | None = None  # tokens of prompt and output together; None: an upstream did not say
    price: Price | None = None
    capabilities: frozenset[Capability] = frozenset()
    recommended: dict[str, float | int] = {}  # sampling, by its authors, and `max_tokens` for a chat
    weights: str | None = None  # what an engine keeps them as: "bfloat16", "int4", "Q4_K_M"; None: not known
    drafts: str | None = None  # what drafts tokens: "off", "lookup", "eagle", …; None: not known
    region: str | None = None
    remote: bool = False  # an upstream's
    owner: str = "penstock"  # `owned_by` in /v1/models; an upstream's host
    created: int = 0  # seconds since 1970
    parent: str | None = None  # of an adapter: the model that it changes


class Load(msgspec.Struct, frozen=True):
    """How busy a deployment is."""

    open: int = 0  # sequences that this frontend has submitted and that have not ended
    open_tokens: int = 0  # prompt tokens of those that have no output so far
    running: int | None = None  # by the engine's last report; None: there is none, as for upstreams
    waiting: int | None = None
    kv_use: float | None = None  # share of KV blocks that sequences hold
    reported: float | None = None  # when that report came, by `time.monotonic`: an old one is stale
    slots: int | None = None  # sequences that it runs at once; None: not known, as of upstreams

    @property
    def ahead(self) -> int:
        """How many sequences must end before another one has a slot and blocks."""
        if self.slots is None or not self.open:
            return 0
        return max(self.open + 1 - self.slots, self.waiting or 0, 0)


class EngineReport(Protocol):
    """The last report of an engine (`observe.trace.replica.Level`)."""

    t: float
    waiting: int

    @property
    def kv_use(self) -> float: ...


class Deployment(Protocol):
    """One place that can work on requests: a local replica or an upstream."""

    @property
    def name(self) -> str:
        """Unique per server: "smollm2/0"."""

    @property
    def source(self) -> Source:
        """Model and replica, as in events and metrics."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def state(self) -> State: ...

    def load(self) -> Load:
        """A snapshot; cheap, for every request."""

    @property
    def prefixes(self) -> PrefixTracker | None:
        """What its prefix cache is expected to hold; None: that is not known, as of upstreams."""

    def submit(self, call: Call) -> Ticket:
        """Work on one client's request; returns at once. Raises if it cannot be taken: EngineDied, Overloaded, …
        Failures after that end the ticket in an error."""

    def cancel(self, ticket: Ticket) -> None:
        """The client has gone, or another deployment has the request now."""


class Call(msgspec.Struct):
    """One client's request on its way to a deployment: the parsed requests (one per prompt), which are all that an
    upstream needs, and for local replicas what the model's pipeline has made of them."""

    requests: list[Request]
    active_requests: list[ActiveRequest] = []
    exclude: frozenset[str] = frozenset()  # names of deployments that failed on it
    route: RouteRecord = msgspec.field(default_factory=RouteRecord)  # how its deployment was chosen
    keys: list[bytes] = []  # of the blocks of its first prompt, if the router computed them
    cached_tokens: int = 0  # of that prompt, as the router expects at the chosen deployment
    handoff: Handoff | None = None  # what computes its prompt first, for the chosen replica

    @property
    def ready_tokens(self) -> int:
        """Of its first prompt: those that the chosen deployment need not compute, as far as is known."""
        return self.cached_tokens if self.handoff is None else self.handoff.prefilled_tokens


class PromptCount(NamedTuple):
    """How many tokens a prompt has."""

    num_tokens: int
    tokens: Sequence[int] = ()  # none: they are not known
    estimated: bool = False  # by what is known of an upstream


class ServedModel(Protocol):
    """What the `model` field of a request names (`deployment.registry` finds it)."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def state(self) -> State:
        """READY if one of its deployments is."""

    @property
    def deployments(self) -> Sequence[Deployment]:
        """None while it is unloaded."""

    @property
    def sampling(self) -> dict[str, Any]:
        """Recommended sampling parameters, for fields that a request leaves out."""

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables of the model's chat template."""

    @property
    def chat_format(self) -> ChatFormat | None:
        """None: there is no chat template, or it is not known."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The texts of token ids, for log-probabilities. An upstream that gives no token ids needs none."""

    def count_prompt(self, request: Request) -> PromptCount:
        """The tokens of its prompt. Blocks. Raises the errors of the prompt that `prepare` would."""

    async def prepare(self, requests: list[Request]) -> Call:
        """Check the requests and do what comes before a deployment is picked. Raises what is wrong with them."""

    async def submit(self, call: Call) -> Ticket:
        """Pick a deployment and submit: all of the call or nothing. Waits until the model is loaded. The ticket's
        `deployment` says who works on it. Another model needs a call of its own, prepared from `call.requests`."""

    def end_all(self, why: str) -> None:
        """End all tickets in an error, ShuttingDown: the server stops."""

    def close(self) -> None: ...


# Picks one of the deployments that are READY (at least one), for a request. The default takes the least loaded; routing
# policies have the same form.
Pick = Callable[[Sequence[Deployment], Call], Deployment]
