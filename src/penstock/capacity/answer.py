"""The planner's result. Units are in the names: seconds, bytes and tokens throughout."""

from __future__ import annotations

import msgspec

from penstock.capacity.device import Device
from penstock.capacity.question import Question
from penstock.capacity.speed import Bound


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a plan."""


class PlannedModel(Answer, frozen=True, kw_only=True):
    name: str
    parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    weights_bytes: float  # in the chosen format, over all devices


class FormatBytes(Answer, frozen=True, kw_only=True):
    name: str
    bits: float
    weights_bytes: float  # of one device
    fits: bool


class Memory(Answer, frozen=True, kw_only=True):
    """Of one device."""

    total_bytes: float
    budget_bytes: float
    weights_bytes: float
    workspace_bytes: float
    kv_bytes: float  # the memory left
    fits: bool  # whether one request of the workload fits beside weights and workspace
    missing_bytes: float
    formats: list[FormatBytes]


class KvFormat(Answer, frozen=True, kw_only=True):
    name: str
    bits: float  # of a number, with its share of the scale
    bytes_per_token: float
    request_bytes: float
    concurrent_requests: int


class Kv(Answer, frozen=True, kw_only=True):
    formula: str  # how bytes_per_token comes about
    bytes_per_token: float  # over all devices, each KV head counted once
    bytes_per_token_late: float  # of positions beyond every sliding window
    request_tokens: int
    request_bytes: float
    tokens: int  # that fit kv_bytes
    longest_context: int
    concurrent_requests: int
    formats: list[KvFormat]


class Prefill(Answer, frozen=True, kw_only=True):
    tokens: float  # computed: without cached ones
    flop: float
    ceiling_s: float
    expected_s: float
    tokens_per_s: float  # expected
    bound: Bound


class DecodePoint(Answer, frozen=True, kw_only=True):
    batch: int
    ceiling_s: float  # of a step: TPOT
    expected_s: float
    ceiling_tokens_per_s: float
    tokens_per_s: float  # expected, of the whole batch
    request_tokens_per_s: float
    bound: Bound


class Decode(Answer, frozen=True, kw_only=True):
    context_tokens: float
    balance_batch: float | None
    curve: list[DecodePoint]


class Degree(Answer, frozen=True, kw_only=True):
    """Tensor parallelism of this degree; figures are per device."""

    degree: int
    possible: bool
    problem: str | None = None
    weights_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    fits: bool = False
    concurrent_requests: int = 0
    allreduce_bytes_per_token: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None  # TPOT at batch 1
    tokens_per_s: float | None = None  # at the largest batch
    bandwidth_bytes_s: float | None = None  # of all devices together
    ceiling_tokens_per_s: float | None = None  # of one request, at full efficiency, all-reduces included
    allreduce_share: float | None = None  # of that step's time


class Gain(Answer, frozen=True, kw_only=True):
    acceptance: float
    drafts: int
    tokens_per_verification: float
    speedup: float


class BatchGain(Answer, frozen=True, kw_only=True):
    batch: int
    speedup: float


class Speculation(Answer, frozen=True, kw_only=True):
    """At batch 1, except `by_batch`."""

    acceptance: float
    drafts: int
    draft_cost: float
    tokens_per_verification: float
    verify_cost: float
    speedup: float
    best_drafts: int
    best_speedup: float
    grid: list[Gain]
    by_batch: list[BatchGain]


class FleetSize(Answer, frozen=True, kw_only=True):
    replicas: int
    utilisation: float
    stable: bool
    wait_p95_s: float | None


class Replicas(Answer, frozen=True, kw_only=True):
    rate: float
    replicas: int
    devices: int
    batch: int  # slots of a replica
    capacity_per_s: float  # requests per second of one replica
    utilisation: float
    in_flight: float  # requests running on a replica, on average
    wait_probability: float
    wait_mean_s: float
    wait_p95_s: float
    first_token_s: float  # TTFT
    request_s: float
    sizes: list[FleetSize]


class Cost(Answer, frozen=True, kw_only=True):
    """Of a million tokens, in the currency of hour_price, with fully used devices except in `at_rate_per_million`."""

    hour_price: float
    input_per_million: float
    output_per_million: float
    blended_per_million: float
    at_rate_per_million: float | None  # with the replicas that `rate` needs, idle time included


class Prices(Answer, frozen=True, kw_only=True):
    """The load at an API's prices per million tokens."""

    input_price: float
    output_price: float
    per_request: float
    blended_per_million: float
    per_hour: float | None  # at the request rate
    own_per_hour: float | None  # of the devices that the rate needs
    break_even_rate: float | None  # requests per second at which one replica costs as much
    break_even_utilisation: float | None  # of that replica; above 1 its own hardware never pays


class Profile(Answer, frozen=True, kw_only=True):
    name: str
    batch: int
    first_token_s: float
    request_tokens_per_s: float
    tokens_per_s: float
    requests_per_s: float
    request_s: float
    cost_per_million: float | None


class MeasuredRow(Answer, frozen=True, kw_only=True):
    name: str
    label: str
    unit: str
    theory: float | None  # the ceiling
    measured: float
    ratio: float | None  # measured / theory


class Measured(Answer, frozen=True, kw_only=True):
    """Averages of a running server over its requests so far."""

    requests: int
    prompt_tokens: float
    output_tokens: float
    rows: list[MeasuredRow]
    compute_efficiency: float | None
    bandwidth_efficiency: float | None


class Plan(Answer, frozen=True, kw_only=True):
    question: Question  # with its defaults, and the efficiencies that were calibrated
    not_run: list[str]  # what Penstock itself cannot run of this yet
    model: PlannedModel
    hardware: Device
    devices: int  # of one replica
    memory: Memory
    kv: Kv
    prefill: Prefill
    decode: Decode
    parallel: list[Degree]
    speculation: Speculation
    replicas: Replicas | None
    cost: Cost | None
    prices: Prices | None
    profiles: list[Profile]
    measured: Measured | None = None
    notes: list[str]
