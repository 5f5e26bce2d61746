"""The settings of a server beside its engines: routing, addresses and keys, tenants, observation."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from penstock.settings.sections import Positive, Section, split_list

MAX_FRONTENDS = 64


class RoutingSettings(Section, frozen=True):
    routing_policy: Annotated[
        Literal["prefix", "load", "ttft", "cost", "name"],
        Meta(description="How requests are divided among the replicas of a model: see docs/ROUTING.md."),
    ] = "prefix"
    region: Annotated[
        str | None,
        Meta(description="Region label; models with the same label are preferred. [default: none]"),
    ] = None
    ttft_target_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Target of the routing policy ttft. [default: the least]"),
    ] = None
    fallback_deadline_s: Annotated[
        float,
        Meta(gt=0, description="Seconds to the first output, over all attempts of a request with a fallback."),
    ] = 60.0
    fallback_after_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds without output after which the next model is tried. [default: only on failure]"),
    ] = None
    fallback_rounds: Annotated[
        int,
        Meta(
            ge=0,
            le=10,
            description="Further rounds through a chain of models, or to an upstream, after a failure.",
        ),
    ] = 2


class ServeSettings(Section, frozen=True):
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 selects a free one.")] = 8000
    frontends: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_FRONTENDS,
            description="Frontend processes behind one address; 0: by cores and device. See docs/SCALING.md.",
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
        Meta(description="Most models of [[models]] in memory at once; others take turns. [default: what fits]"),
    ] = None
    stall_s: Annotated[
        float, Meta(gt=0, description="Seconds without a read after which a slow client is dropped.")
    ] = 60.0
    hang_s: Annotated[
        float, Meta(gt=0, description="Seconds without a finished step after which a busy engine is replaced.")
    ] = 300.0
    default_max_tokens: Annotated[
        Positive | None,
        Meta(description="max_tokens of chat requests that set none. [default: up to the context length]"),
    ] = None
    max_body: Annotated[str, Meta(description="Maximum request body, such as 16MiB.")] = "16MiB"
    max_file: Annotated[str, Meta(description="Maximum file uploaded for a batch, such as 200MB.")] = "200MB"
    max_adapter: Annotated[str, Meta(description="Maximum uploaded LoRA adapter, such as 1GiB.")] = "1GiB"
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
        return (*split_list(self.api_key), *self.admin_keys)

    @property
    def admin_keys(self) -> tuple[str, ...]:
        return split_list(self.admin_key)

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(origin.lower() for origin in split_list(self.allow_origin))  # as browsers write them

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.lower() for host in split_list(self.allow_host))

    @property
    def adapter_roots(self) -> tuple[str, ...]:
        return split_list(self.adapter_folders)

    @property
    def mcp_servers(self) -> tuple[str, ...]:
        return split_list(self.mcp_server)


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
            description="While limits cannot be checked or usage cannot be recorded: closed rejects requests with "
            "503, open lets them through."
        ),
    ] = "closed"
    revoked_streams: Annotated[
        Literal["end", "finish"],
        Meta(description="When a key is revoked or expires: end its running requests, or let them finish."),
    ] = "end"


class ObserveSettings(Section, frozen=True):
    events: Annotated[bool, Meta(description="Record events of every stage, for /ui and /observe.")] = True
    keep_texts: Annotated[bool, Meta(description="Keep prompts and responses with the record of each request.")] = False
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
        str | None, Meta(description="URL to which the start and end of alerts are posted. [default: none]")
    ] = None
