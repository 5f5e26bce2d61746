"""What is asked of the planner, and what is wrong with it. The same over HTTP and on the command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.capacity.device import Device
from penstock.capacity.formats import FORMATS, KV_FORMATS, KV_PAIRS
from penstock.capacity.shape import Shape, plain_vectors
from penstock.errors import InvalidRequest, did_you_mean
from penstock.system import typed

# Generous for decades to come, and near enough together that nothing overflows.
MAX_TOKENS = 100_000_000
Extent = Annotated[int, Meta(ge=1, le=10_000_000)]
Count = Annotated[int, Meta(ge=1, le=100_000)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Amount = Annotated[float, Meta(ge=1, le=1e21)]
LEAST_SHARE = 0.001
Share = Annotated[float, Meta(ge=LEAST_SHARE, le=1)]
Rate = Annotated[float, Meta(ge=1e-6, le=1e12)]
Price = Annotated[float, Meta(ge=0, le=1e9)]

# msgspec's names of types -> JSON's
WORDS = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false", "object": "an object"}


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ModelNumbers(_Part, frozen=True, kw_only=True):
    """A model by its numbers, as its config.json has them."""

    layers: Count
    hidden: Extent
    intermediate: Extent
    heads: Count
    vocab: Extent
    context: Tokens
    kv_heads: Count | None = None  # as many as heads
    head_dim: Extent | None = None  # hidden / heads
    tied: bool = False
    window: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    windowed_layers: Annotated[int, Meta(ge=0, le=100_000)] = 0
    name: Annotated[str, Meta(max_length=100)] = "custom"

    def shape(self) -> Shape:
        kv_heads = self.kv_heads or self.heads
        if self.heads % kv_heads:
            raise InvalidRequest(
                f"model.kv_heads: {self.heads} heads cannot share {kv_heads} KV heads evenly", param="model.kv_heads"
            )
        if self.head_dim is None and self.hidden % self.heads:
            raise InvalidRequest(
                f"model.head_dim is required: hidden ({self.hidden}) is no multiple of heads ({self.heads})",
                param="model.head_dim",
            )
        if self.windowed_layers > self.layers:
            raise InvalidRequest(
                f"model.windowed_layers ({self.windowed_layers}) must be at most layers ({self.layers})",
                param="model.windowed_layers",
            )
        if self.windowed_layers and not self.window:
            raise InvalidRequest("model.window is required with windowed_layers", param="model.window")
        return Shape(
            name=self.name,
            layers=self.layers,
            hidden=self.hidden,
            intermediate=self.intermediate,
            heads=self.heads,
            kv_heads=kv_heads,
            head_dim=self.head_dim or self.hidden // self.heads,
            vocab=self.vocab,
            context=self.context,
            tied=self.tied,
            window=self.window,
            windowed_layers=self.windowed_layers,
            vectors=plain_vectors(self.layers, self.hidden),
        )


class DeviceNumbers(_Part, frozen=True, kw_only=True):
    """A device by its numbers, as its data sheet has them."""

    memory_bytes: Amount
    bandwidth_bytes_s: Amount
    flops: Amount
    link_bytes_s: Amount | None = None
    fp8_flops: Amount | None = None
    name: Annotated[str, Meta(max_length=100)] = "custom"

    def device(self) -> Device:
        return Device(label=self.name, **msgspec.structs.asdict(self))


class Question(_Part, frozen=True, kw_only=True):
    """A model, the hardware for it, and what it is to do."""

    model: Annotated[
        str | ModelNumbers, Meta(description="Name of a preset or of a model of this server, or a model's numbers.")
    ]
    hardware: Annotated[
        str | DeviceNumbers,
        Meta(description="A preset's name, \"this\" for the machine itself, or a device's numbers."),
    ]
    weights: Annotated[str, Meta(description=f"Format of the weights in memory: {', '.join(FORMATS)}.")] = "bfloat16"
    kv: Annotated[
        str,
        Meta(description=f"Type of the KV cache: {', '.join(KV_FORMATS)}; or of keys and values, as in int8,int4."),
    ] = "bfloat16"
    prompt_tokens: Annotated[Tokens, Meta(description="Tokens of a prompt.")] = 1024
    output_tokens: Annotated[Tokens, Meta(description="Tokens of an answer.")] = 256
    cached_share: Annotated[
        float, Meta(ge=0, lt=1, description="Share of a prompt that is found in the prefix cache.")
    ] = 0.0
    tensor_parallel: Annotated[
        int, Meta(ge=1, le=1024, description="Number of devices that one model is split over.")
    ] = 1
    memory_fraction: Annotated[Share, Meta(description="Share of a device's memory to use.")] = 0.9
    max_sequences: Annotated[int, Meta(ge=1, le=65_536, description="Most requests that run at once.")] = 512
    step_tokens: Annotated[Tokens, Meta(description="Most tokens one step computes.")] = 8192
    compute_efficiency: Annotated[Share, Meta(description="Share of the arithmetic's ceiling to expect.")] = 0.6
    bandwidth_efficiency: Annotated[Share, Meta(description="Share of the bandwidth's ceiling to expect.")] = 0.7
    measured_tokens_per_s: Annotated[
        Rate | None,
        Meta(description="Measured tok/s of one request; replaces bandwidth_efficiency."),
    ] = None
    measured_prefill_tokens_per_s: Annotated[
        Rate | None,
        Meta(description="Measured prompt tok/s of a prefill; replaces compute_efficiency."),
    ] = None
    rate: Annotated[
        Annotated[float, Meta(ge=1e-6, le=1e6)] | None,
        Meta(description="Requests per second; the plan computes the replicas for them."),
    ] = None
    wait_p95_s: Annotated[float, Meta(ge=0, le=86_400, description="Longest p95 wait in the queue, in seconds.")] = 1.0
    utilisation: Annotated[float, Meta(ge=0.01, lt=1, description="Largest share of a replica's capacity to use.")] = (
        0.8
    )
    min_tokens_per_s: Annotated[
        Annotated[float, Meta(ge=1e-6, le=1e9)] | None,
        Meta(description="Least tok/s of each request; bounds the batch."),
    ] = None
    hour_price: Annotated[Price | None, Meta(description="Price of one device per hour.")] = None
    input_price: Annotated[
        Price | None, Meta(description="An API's price per million prompt tokens, to compare with.")
    ] = None
    output_price: Annotated[Price | None, Meta(description="An API's price per million output tokens.")] = None
    acceptance: Annotated[float, Meta(ge=0, le=1, description="Probability that a draft is right.")] = 0.7
    drafts: Annotated[int, Meta(ge=1, le=64, description="Tokens drafted before each verification.")] = 4
    draft_cost: Annotated[
        float, Meta(ge=0, le=10, description="Time to draft a token, in steps of the model itself.")
    ] = 0.05

    def check(self, shape: Shape) -> None:
        """What single fields cannot say of themselves."""
        one_of(self.weights, FORMATS, "weights")
        one_of(self.kv, (*KV_FORMATS, *KV_PAIRS), "kv")
        if self.prompt_tokens + self.output_tokens > shape.context:
            raise InvalidRequest(
                f"prompt_tokens ({self.prompt_tokens}) and output_tokens ({self.output_tokens}) come to more than the "
                f"{shape.context} tokens that {shape.name} was made for",
                param="prompt_tokens",
            )


# What Penstock itself does on a CPU, where a question does not say.
CPU_DEFAULTS: dict[str, Any] = {
    "kv": "float16",
    "memory_fraction": 0.25,
    "max_sequences": 64,
    "step_tokens": 512,
}


def question_for(device: Device, shape: Shape, values: Mapping[str, Any], *, strict: bool = True) -> Question:
    """With the defaults that go with the device. Weights stay as they are stored, but for float32 on a GPU."""
    on_cpu = device.kind == "cpu"
    weights = {"weights": shape.stored} if on_cpu or shape.stored != "float32" else {}
    return question({**(CPU_DEFAULTS if on_cpu else {}), **weights, **values}, strict=strict)


def question(values: Mapping[str, Any], *, strict: bool = True) -> Question:
    """Raises InvalidRequest with the field at fault. Not `strict`: numbers may be text, as from a command line."""
    try:
        return typed.convert(values, Question, strict=strict)
    except msgspec.ValidationError as error:
        # "Expected `int` >= 1 - at `$.prompt_tokens`", "Object contains unknown field `x` - at `$.model`"
        what, _, path = str(error).partition(" - at ")
        place = path.strip("`").removeprefix("$").removeprefix(".")
        raise _invalid(what, place) from None


def _invalid(what: str, place: str) -> InvalidRequest:
    if field := re.search(r"field `(.*)`$", what):
        param = f"{place}.{field[1][:64]}" if place else field[1][:64]
        if "missing" in what:
            return InvalidRequest(f"{param} is required", param=param)
        known = {"model": ModelNumbers, "hardware": DeviceNumbers}.get(place, Question).__struct_fields__
        return InvalidRequest(f"{param} is not a known field{did_you_mean(field[1], known)}", param=param)
    plain = re.sub(
        r"`([^`]*)`", lambda found: " or ".join(WORDS.get(word, word) for word in found[1].split(" | ")), what
    )
    return InvalidRequest(f"{place} must be {plain.removeprefix('Expected ')}", param=place)


def one_of(name: str, known: Collection[str], param: str) -> None:
    if name not in known:
        raise InvalidRequest(
            f"{param} must be one of {', '.join(known)}, got {name[:64]!r}{did_you_mean(name, known)}", param=param
        )
