"""The settings of each stage: a struct per table of the TOML file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# The description is the setting's --help; bounds are checked when settings are resolved.
Positive = Annotated[int, Meta(ge=1)]
ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
MAX_FRONTENDS = 64

# One name for keys and values, or those of both (store/kv_types.py).
KvDtype = Literal[
    "auto",
    "float32",
    "float16",
    "int8",
    "int4",
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
        Literal["auto", "dummy"], Meta(description="dummy: random weights from the model's config alone.")
    ] = "auto"
    quantize: Annotated[
        Literal["int8", "int4"] | None,
        Meta(description="Quantize float weights at load time, for the native CPU kernels. [default: no]"),
    ] = None
    context: Annotated[
        Positive | None, Meta(description="Context length in tokens. [default: the model's, or what fits memory]")
    ] = None
    adapters: Annotated[
        tuple[str | AdapterEntry, ...],
        Meta(
            description="LoRA adapter, as NAME=SOURCE (folder, .gguf file, hub id or pypi:): served as MODEL@NAME. "
            "See docs/ADAPTERS.md."
        ),
    ] = ()

    @property
    def adapter_entries(self) -> tuple[AdapterEntry, ...]:
        """Raises ValueError."""
        return tuple(AdapterEntry.parse(one) if isinstance(one, str) else one for one in self.adapters)


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
            description="KV cache dtype; two for keys and values, as in int8,int4. auto: float16 with the native CPU "
            "kernels, else the model's dtype. int4 saves memory at a loss of quality (docs/QUANTIZATION.md)."
        ),
    ] = "auto"
    adapter_memory: Annotated[
        str | None,
        Meta(
            description="Memory for loaded LoRA adapters, such as 2GiB; the least recently used make room. "
            "[default: 1GiB on a CPU]"
        ),
    ] = None
    prefix_caching: Annotated[bool, Meta(description="Reuse KV blocks of common prompt prefixes.")] = True
    kv_events: Annotated[
        Annotated[str, Meta(pattern=r"^tcp://(\*|[^\s:/\[\]]+|\[[0-9a-fA-F:]+\]):\d{1,5}$")] | None,
        Meta(
            description="Address where cached blocks, with their tokens, are published for other routers in vLLM's "
            "format, such as tcp://127.0.0.1:5557; further replicas take the ports behind it. [default: none]"
        ),
    ] = None

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
            description="Token budget of a step. [default: 512 on a CPU; on a GPU 8192, or 16384 if the weights "
            "take 4 GiB or less]"
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
            description="Queue policy: tenants in turn by the tokens they were served, by arrival, by request "
            "priority, or by latency target."
        ),
    ] = "fair"
    ageing_s: Annotated[
        float, Meta(gt=0, description="Seconds of waiting that are worth one tier (policies fair and priority).")
    ] = 120.0
    ttft_targets_s: Annotated[
        str,
        Meta(
            pattern=r"^ *\d+(\.\d+)?( *, *\d+(\.\d+)?)* *$",
            description="Seconds to the first token that the deadline policy aims at, by tier, comma-separated.",
        ),
    ] = "1,5,60"
    lookahead: Annotated[
        Literal[0, 1] | None,
        Meta(description="Steps planned ahead of the last settled one. [default: 0 on a CPU, 1 on a GPU]"),
    ] = None

    @property
    def tier_targets_s(self) -> tuple[float, ...]:
        return tuple(float(part) for part in _split_list(self.ttft_targets_s))


class EngineSettings(Section, frozen=True):
    isolate: Annotated[bool, Meta(description="Run the engine in its own process.")] = False
    threads: Annotated[
        Positive | None, Meta(description="CPU threads of the model. [default: the available cores]")
    ] = None
    tensor_parallel: Annotated[
        Positive,
        Meta(description="Processes that the model is split over, each with its share of every layer. On a CPU only."),
    ] = 1
    pipeline_parallel: Annotated[
        Positive, Meta(description="Only 1: layers are not divided among processes. See tensor-parallel.")
    ] = 1
    speculate: Annotated[
        str,
        Meta(
            description="Draft tokens and verify several in one step; the output is the same. lookup: what occurred "
            "before (prompt lookup); draft:MODEL: a smaller model with the same vocabulary; eagle:FOLDER, "
            "medusa:FOLDER: a trained head; mtp: the model's own MTP layers; auto: lookup where the backend can; off.",
        ),
    ] = "off"
    speculate_audit: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of the steps with drafts that are computed again without, and compared."),
    ] = 0.0


class RoutingSettings(Section, frozen=True):
    routing_policy: Annotated[
        Literal["prefix", "load", "ttft", "cost", "name"],
        Meta(description="How requests are divided among replicas: see docs/ROUTING.md."),
    ] = "prefix"
    region: Annotated[str | None, Meta(description="Label of models that are preferred. [default: none]")] = None
    ttft_target_s: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="TTFT that the ttft policy aims at. [default: the least]")
    ] = None
    fallback_deadline_s: Annotated[
        float, Meta(gt=0, description="Seconds to the first output, over all attempts of a request that may fall back.")
    ] = 60.0
    fallback_after_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds without output after which the next model is tried. [default: only on failure]"),
    ] = None
    fallback_rounds: Annotated[
        int, Meta(ge=0, le=10, description="Repetitions of a chain of models, or of an upstream, after it has failed.")
    ] = 2


class ServeSettings(Section, frozen=True):
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 selects a free one.")] = 8000
    frontends: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_FRONTENDS,
            description="Frontend processes that share the address; 0: by cores and device. See docs/SCALING.md.",
        ),
    ] = 1
    api_key: Annotated[
        str | None, Meta(description="API key that clients must send; comma-separated for several. [default: none]")
    ] = None
    admin_key: Annotated[
        str | None,
        Meta(
            description="API key that may also add, load, unload and remove models; comma-separated for several. "
            "[default: none; without api_key every client may]"
        ),
    ] = None
    allow_origin: Annotated[
        str | None,
        Meta(
            description="Origin whose pages may call the server from a browser (CORS), such as https://app.example; "
            "comma-separated for several, * for any. [default: none]"
        ),
    ] = None
    allow_host: Annotated[
        str | None,
        Meta(
            description="Host name accepted without an API key, such as penstock.lan or *.example.com, besides "
            "localhost and IP addresses; comma-separated for several, * for any. [default: none]"
        ),
    ] = None
    mcp_server: Annotated[
        str | None,
        Meta(
            description="MCP server (Streamable HTTP) whose tools the playground may call, such as "
            "http://127.0.0.1:9000/mcp; comma-separated for several. [default: none]"
        ),
    ] = None
    unprotected: Annotated[bool, Meta(description="Allow a non-loopback host without an API key.")] = False
    drain_s: Annotated[float, Meta(ge=0, description="Seconds for running requests to finish at shutdown.")] = 30.0
    max_loaded: Annotated[
        Positive | None,
        Meta(description="Models of [[models]] in memory at once; others are swapped. [default: what fits]"),
    ] = None
    stall_s: Annotated[
        float, Meta(gt=0, description="Seconds without a read after which a slow client is dropped.")
    ] = 60.0
    hang_s: Annotated[
        float, Meta(gt=0, description="Seconds without a finished step after which a busy engine is replaced.")
    ] = 300.0
    default_max_tokens: Annotated[
        Positive | None,
        Meta(description="max_tokens of chat requests without a limit. [default: up to the context length]"),
    ] = None
    max_body: Annotated[str, Meta(description="Maximum request body, such as 16MiB.")] = "16MiB"
    max_file: Annotated[str, Meta(description="Maximum file uploaded for a batch, such as 200MB.")] = "200MB"
    max_adapter: Annotated[str, Meta(description="Maximum LoRA adapter that is uploaded, such as 1GiB.")] = "1GiB"
    adapter_folders: Annotated[
        str | None,
        Meta(
            description="Folders from which adapters may be loaded while the server runs; comma-separated for several. "
            "[default: none]"
        ),
    ] = None
    cluster: Annotated[
        str | None,
        Meta(
            description="Run the engines on a Ray cluster: its address, or auto for the one on this machine, which is "
            "started if there is none. [default: on this machine, without Ray]"
        ),
    ] = None
    data_dir: Annotated[
        str | None,
        Meta(
            description="Folder for files, batches and uploaded adapters; of one server at a time. [default: "
            "~/.local/share/penstock]"
        ),
    ] = None

    @property
    def keys(self) -> tuple[str, ...]:
        """All that clients may send."""
        return (*_split_list(self.api_key), *self.admin_keys)

    @property
    def admin_keys(self) -> tuple[str, ...]:
        return _split_list(self.admin_key)

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(origin.lower() for origin in _split_list(self.allow_origin))  # as browsers write them

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.lower() for host in _split_list(self.allow_host))

    @property
    def adapter_roots(self) -> tuple[str, ...]:
        return _split_list(self.adapter_folders)

    @property
    def mcp_servers(self) -> tuple[str, ...]:
        return _split_list(self.mcp_server)


class TenantSettings(Section, frozen=True):
    keys: Annotated[
        bool, Meta(description="Require API keys of the database: see `penstock keys` and docs/TENANTS.md.")
    ] = False
    ledger: Annotated[
        bool, Meta(description="Record each request's usage and cost in the database; keys imply it.")
    ] = False
    database: Annotated[
        str | None,
        Meta(
            description="URL of the database of keys and usage: sqlite:////path/to/file or "
            "postgresql://user@host/name, where servers also share stored responses, files and batches. "
            "[default: tenants.db in data-dir]"
        ),
    ] = None
    redis: Annotated[
        str | None, Meta(description="URL of the Redis server where several servers share limits. [default: none]")
    ] = None
    limits_unavailable: Annotated[
        Literal["closed", "open"],
        Meta(
            description="What becomes of requests while limits cannot be checked or usage cannot be recorded: "
            "rejected with 503, or let through."
        ),
    ] = "closed"
    revoked_streams: Annotated[
        Literal["end", "finish"],
        Meta(description="What becomes of running requests when their key is revoked or expires."),
    ] = "end"


class ObserveSettings(Section, frozen=True):
    events: Annotated[bool, Meta(description="Record events of every stage, for /ui and /observe.")] = True
    keep_texts: Annotated[bool, Meta(description="Keep prompts and responses with the record of a request.")] = False
    log_format: Annotated[Literal["human", "json"], Meta(description="Log line format.")] = "human"
    otel_endpoint: Annotated[
        str | None,
        Meta(description="OTLP endpoint for spans, such as http://localhost:4318/v1/traces. [default: none]"),
    ] = None
    slo_ttft_p95: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="SLO: TTFT p95 in seconds.")] = None
    slo_tokens_per_s_p50: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="SLO: median generation tok/s per request.")
    ] = None
    slo_error_rate: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="SLO: share of failed requests.")
    ] = None
    slo_kv_use: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="SLO: share of KV blocks in use.")
    ] = None
    slo_gpu_memory: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="SLO: share of the GPU's memory in use.")
    ] = None
    slo_queue_depth: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="SLO: queued sequences.")] = None
    slo_spend_rate: Annotated[
        Annotated[float, Meta(gt=1)] | None,
        Meta(description="SLO: a tenant's spend in the window, as a multiple of its mean of the last day."),
    ] = None
    slo_window_s: Annotated[float, Meta(gt=0, description="Window of the SLOs in seconds.")] = 300.0
    slo_webhook: Annotated[
        str | None, Meta(description="Webhook URL for alerts that begin and end. [default: none]")
    ] = None


def _split_list(text: str | None) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def error_in_words(what: str) -> str:
    """Of "Expected `int` <= 65535": "must be a whole number <= 65535"."""
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
    text = re.sub(r"`(\w+)(?: \| null)?`", lambda match: names.get(match[1], match[1]), what)
    for found, said in (
        ("Expected", "must be"),
        ("Object contains unknown field", "has no setting"),
        ("Object missing required field", "lacks"),
        ("Invalid enum value", "cannot be"),
    ):
        text = text.replace(found, said)
    return text
