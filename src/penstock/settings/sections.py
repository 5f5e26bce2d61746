"""The settings of a model and its engine: a struct per table of the TOML file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.errors import InvalidSetting

# The description is the setting's --help; bounds are checked when settings are resolved.
Positive = Annotated[int, Meta(ge=1)]
ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

# One name for keys and values, or those of both (store/kv_types.py).
# `startup.decide` checks which of them a device has.
KvDtype = Literal[
    "auto",
    "float32",
    "bfloat16",
    "float16",
    "int8",
    "int4",
    "fp8",
    "fp8,int8",
    "fp8,int4",
    "int8,fp8",
    "int4,fp8",
    "float16,int8",
    "float16,int4",
    "int8,float16",
    "int8,int4",
    "int4,float16",
    "int4,int8",
]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one stage: a table of the TOML file."""


class PriceSettings(Section, frozen=True):
    """Per million tokens."""

    input: Annotated[float, Meta(ge=0)] = 0.0
    output: Annotated[float, Meta(ge=0)] = 0.0
    cached_input: Annotated[float, Meta(ge=0)] | None = None


class AdapterEntry(Section, frozen=True, kw_only=True):
    """A LoRA adapter of a model, served as `model@name`."""

    name: Annotated[str, Meta(pattern=ADAPTER_NAME)]
    source: str  # folder, .gguf file, hub id or pypi:
    aliases: tuple[str, ...] = ()
    price: PriceSettings | None = None  # None: the model's

    @classmethod
    def parse(cls, text: str) -> AdapterEntry:
        """NAME=SOURCE. Raises ValueError."""
        name, separator, source = text.partition("=")
        if not separator or not re.fullmatch(ADAPTER_NAME, name) or not source:
            raise ValueError(f"must be NAME=SOURCE, the name of letters, digits, '.', '_' and '-'; got {text[:200]!r}")
        return cls(name=name, source=source)


class ModelSettings(Section, frozen=True):
    model: Annotated[
        str, Meta(description="Catalogue name, folder, .gguf file, hub id, or pypi:<package>[==version]/<file>.")
    ] = "smollm2"
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Meta(description="Compute dtype.")] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="Device of the model.")] = "auto"
    load_format: Annotated[
        Literal["auto", "dummy"],
        Meta(description="dummy: random weights; only the model's config is read."),
    ] = "auto"
    quantize: Annotated[
        Literal["fp8", "int8", "int4"] | None,
        Meta(
            description="Quantize float weights at load time: int8 or int4 with the native CPU kernels; int8, int4 or "
            "fp8 on a GPU. [default: no]"
        ),
    ] = None
    context: Annotated[
        Positive | None, Meta(description="Context length in tokens. [default: the model's, or what fits memory]")
    ] = None
    adapters: Annotated[
        tuple[str | AdapterEntry, ...],
        Meta(
            description="LoRA adapter, as NAME=SOURCE (folder, .gguf file, hub id or pypi:), which requests name as "
            "MODEL@NAME. See docs/ADAPTERS.md."
        ),
    ] = ()

    @property
    def adapter_entries(self) -> tuple[AdapterEntry, ...]:
        """Raises ValueError."""
        return tuple(AdapterEntry.parse(one) if isinstance(one, str) else one for one in self.adapters)

    def check(self) -> None:
        """Checks across fields; raises InvalidSetting."""
        try:
            names = [name for one in self.adapter_entries for name in (one.name, *one.aliases)]
        except ValueError as error:
            raise InvalidSetting(f"adapters: {error}", param="adapters") from None
        for place, name in enumerate(names):
            if name in names[:place]:
                raise InvalidSetting(f"adapters: {name!r} is there twice", param="adapters")
            if not re.fullmatch(r"[^\s@,]+", name):
                raise InvalidSetting(f"adapters: {name!r} has spaces, commas or @ in it", param="adapters")


class CacheSettings(Section, frozen=True):
    block_size: Annotated[int, Meta(ge=1, le=1024, description="Tokens per KV block.")] = 16
    kv_memory: Annotated[
        str | None, Meta(description="Memory for KV blocks, such as 2GiB. [default: by memory-fraction]")
    ] = None
    memory_fraction: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Share of the device's memory to use. [default: 0.9; on a CPU 0.25 of the free memory]"),
    ] = None
    kv_dtype: Annotated[
        KvDtype,
        Meta(
            description="Dtype of the KV cache: auto, float32, bfloat16, float16, fp8, int8 or int4. Two of the last "
            "four, as in int8,int4, are for keys and for values; float16 and fp8 do not go together. auto: float16 "
            "with the native CPU kernels, else the model's dtype. GPUs also have fp8, int8 and int4, the native CPU "
            "kernels int8 and int4. int4 saves memory at a loss of quality (docs/QUANTIZATION.md).",
            extra={"metavar": "DTYPE"},  # a line of 17 choices is unreadable
        ),
    ] = "auto"
    adapter_memory: Annotated[
        str | None,
        Meta(
            description="Memory for loaded LoRA adapters, such as 2GiB; the least recently used make room. auto: 1GiB, "
            "on a GPU 4GiB of its memory. With tensor-parallel each rank takes this much; ranks on a CPU share the "
            "1GiB of auto. [default: auto; on a GPU none, unless adapters are named]"
        ),
    ] = None
    prefix_caching: Annotated[bool, Meta(description="Reuse KV blocks of common prompt prefixes.")] = True
    kv_events: Annotated[
        str | None,
        Meta(
            description="Address, such as tcp://127.0.0.1:5557, where the server publishes which blocks it caches, "
            "with their tokens, for other routers in vLLM's format; further replicas take the next ports. "
            "[default: none]"
        ),
    ] = None

    def check(self) -> None:
        """Checks across fields; raises InvalidSetting."""
        if self.kv_events is None:
            return
        if not re.fullmatch(r"tcp://(\*|[^\s:/\[\]]+|\[[0-9a-fA-F:]+\]):\d{1,5}", self.kv_events):
            raise InvalidSetting(
                f"kv_events must be an address such as tcp://127.0.0.1:5557, got {self.kv_events!r}", param="kv_events"
            )
        if not self.prefix_caching:
            raise InvalidSetting(
                "kv_events: without prefix_caching no block stays cached: turn prefix_caching on, or leave kv_events "
                "out",
                param="kv_events",
            )

    def for_replica(self, number: int) -> CacheSettings:
        """With a port of its own for its events."""
        if self.kv_events is None or number == 0:
            return self
        address, _, port = self.kv_events.rpartition(":")
        return msgspec.structs.replace(self, kv_events=f"{address}:{int(port) + number}")


class ScheduleSettings(Section, frozen=True):
    step_tokens: Annotated[
        Positive | None,
        Meta(
            description="Most tokens that one step computes. [default: 512 on a CPU; on a GPU 8192, or 16384 if the "
            "weights take 4 GiB or less]"
        ),
    ] = None
    max_sequences: Annotated[
        Positive | None, Meta(description="Maximum running sequences. [default: 64 on a CPU, 512 on a GPU]")
    ] = None
    max_waiting: Annotated[int, Meta(ge=1, description="Maximum queued sequences; more are rejected with 429.")] = (
        100_000
    )
    max_waiting_per_tenant: Annotated[
        Positive | None,
        Meta(description="Maximum queued sequences of one tenant; more are rejected with 429. [default: max-waiting]"),
    ] = None
    policy: Annotated[
        Literal["fair", "fcfs", "priority", "deadline"],
        Meta(
            description="Order of the queue. fair: tenants take turns by the tokens they were served; fcfs: by "
            "arrival; priority: by the request's priority; deadline: by latency target. See docs/TENANTS.md."
        ),
    ] = "fair"
    ageing_s: Annotated[
        float, Meta(gt=0, description="Seconds of waiting that raise a request one tier (policies fair and priority).")
    ] = 120.0
    ttft_targets_s: Annotated[
        str,
        Meta(
            pattern=r"^ *\d+(\.\d+)?( *, *\d+(\.\d+)?)* *$",
            description="Targets of the deadline policy: seconds to the first token for the tiers interactive, "
            "standard and bulk, comma-separated.",
        ),
    ] = "1,5,60"
    lookahead: Annotated[
        Literal[0, 1] | None,
        Meta(description="Steps planned before the result of the last one is known. [default: 0 on a CPU, 1 on a GPU]"),
    ] = None

    @property
    def tier_targets_s(self) -> tuple[float, ...]:
        return tuple(float(part) for part in split_list(self.ttft_targets_s))


class EngineSettings(Section, frozen=True):
    isolate: Annotated[bool, Meta(description="Run the engine in its own process.")] = False
    threads: Annotated[
        Positive | None, Meta(description="CPU threads of the model. [default: the available cores]")
    ] = None
    tensor_parallel: Annotated[
        Positive,
        Meta(
            description="Number of processes (ranks) that each hold a share of every layer; on GPUs each rank has a "
            "GPU of its own. See docs/SCALING.md."
        ),
    ] = 1
    pipeline_parallel: Annotated[
        Positive, Meta(description="Only 1 is supported: layers are not divided among processes. Use tensor-parallel.")
    ] = 1
    deterministic: Annotated[
        bool,
        Meta(
            description="Make the tokens of a request independent of the batch, bit by bit. On a GPU this uses other, "
            "slower kernels; the native CPU kernels always compute so."
        ),
    ] = False
    speculate: Annotated[
        str,
        Meta(
            description="Speculative decoding: draft tokens and verify several in one step; the output is the same. "
            "lookup: draft what followed the same tokens before (prompt lookup); draft:MODEL: a smaller model with the "
            "same vocabulary; eagle:FOLDER, medusa:FOLDER: a trained head; mtp: the model's own MTP layers; auto: "
            "lookup if the backend can; off. See docs/SPECULATION.md.",
        ),
    ] = "off"
    speculate_audit: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the steps with drafts that are checked by computing them without.",
        ),
    ] = 0.0


def split_list(text: str | None) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def error_in_words(what: str) -> str:
    """Of "Expected `int` <= 65535": "must be a whole number <= 65535"."""
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "array": "a list"}
    text = re.sub(r"`(\w+)(?: \| null)?`", lambda match: names.get(match[1], match[1]), what)
    for found, said in (
        ("Expected", "must be"),
        ("Object contains unknown field", "has no setting"),
        ("Object missing required field", "lacks"),
        ("Invalid enum value", "cannot be"),
    ):
        text = text.replace(found, said)
    return text
