"""What the routes of the glass box take and show: what their parameters are checked by, and what /openapi.json says."""

from __future__ import annotations

from functools import partial

from penstock.http.debug import sampling_lab
from penstock.http.debug.debug_route import DebugRoute
from penstock.http.parse.query import Parameter
from penstock.observe.trace.records import LAB
from penstock.observe.trace.step_window import MAX_COLUMNS

KINDS = ("chat", "completion", "response", "message", "ollama", "embedding", LAB)
MAX_REPLAYED = 512

_integer = partial(Parameter, type="integer")
_number = partial(Parameter, type="number")

# Of routes about one engine.
REPLICA = (
    Parameter(name="model", description="The model, as `GET /v1/models` names it. Default: the first."),
    _integer(name="replica", description="The number of its replica. Default: 0.", bounds=(0, 10**6)),
)

FACTS = DebugRoute(
    description="What this server is.",
    members={
        "version": "Of Penstock.",
        "started_unix": "When the server began, in seconds since 1970: instants count from there.",
        "now": "This instant.",
        "ready": "Whether requests are taken.",
        "events": "Always true: a server that records none has no such route.",
        "keep_texts": "Whether prompts and answers are kept.",
        "keys": "Whether a key is needed.",
        "scopes": "What the key of this request may do.",
        "model": "Its shape.",
        "engine": "Device, dtypes, sizes, restarts.",
        "settings": "As they were resolved, without secrets and safety rules; for a key of certain models also without "
        "models and routes.",
        "sampling": "What the model's makers recommend.",
        "measured": "Speeds, and the fitted cost of a step.",
        "replica": "The number of the replica that `engine` is about.",
        "models": "All models, each with its state and its replicas.",
    },
    parameters=REPLICA,
    not_found="No such model or replica.",
)
CHECK = DebugRoute(
    description="The verdict on the engines' books: sequences, block tables, reference counts, prefix keys.",
    members={
        "ok": "Whether everything that says the same thing agrees.",
        "wrong": "What does not; null if all does. The engine goes on either way.",
        "us": "How long the answer took: the step under way, and the check.",
    },
    parameters=REPLICA,
    not_found="No such model or replica.",
    asks_engine=True,
)
SPECULATION = DebugRoute(
    description="Speculation of an engine since it started.",
    members={
        "on": "Whether the engine drafts; if not, the other members are null.",
        "steps": "Steps with drafted tokens.",
        "drafted": "Tokens that were drafted.",
        "accepted": "Of those, tokens that the model drew itself.",
        "saved_s": "Seconds of steps that drafts have saved, estimated.",
        "audited": "Tokens drawn again without drafts, to compare them (`--speculate-audit`).",
        "mismatches": "Of those, tokens that were others then: a defect.",
        "drafted_by_position": "Tokens drafted, by position in the draft.",
        "accepted_by_position": "Of those, tokens that were right.",
    },
    parameters=REPLICA,
    not_found="No such model or replica.",
    asks_engine=True,
)
SCALING = DebugRoute(
    description="The replicas of the local models, and how their number changed.",
    members={
        "models": "By model: replicas now, their least and most number, and the demand: how many replicas the load "
        "would fill.",
        "decisions": "The last changes, newest first: when, model, replicas before and after, and why.",
    },
)
TENANTS = DebugRoute(
    description="How the tenants share an engine.",
    members={
        "fair": "Whether they take turns (policy fair).",
        "tenants": "By tenant and tier: weight, virtual token counter, cost of what it was served (an output token "
        "counts twice), running and waiting sequences.",
    },
    parameters=REPLICA,
    not_found="No such model or replica.",
    asks_engine=True,
)
HISTORY = DebugRoute(
    description="Columns for charts: lists of the same length, the oldest first.",
    members={"interval_s": "Seconds between two points.", "t": "When."},
    parameters=(
        _number(name="seconds", description="How far back.", bounds=(2, 3600), default=900),
        _integer(name="points", description="At most so many.", bounds=(1, 1800), default=300),
    ),
)
MODEL_TRACE = DebugRoute(
    description="What the model computes for the prompt, layer by layer. Recomputed beside the engine's steps.",
    members={
        "tokens": "Of the prompt.",
        "layer": "Whose attention is shown.",
        "position": "Of the token that `values`, `lens` and `entropy_bits` are of.",
        "num_layers": "Of the model.",
        "num_heads": "Query heads of a layer.",
        "num_kv_heads": "Heads of keys and values.",
        "hidden_size": "Of the residual stream.",
        "us": "What it took.",
        "norms": "[layers + 1][tokens]: length of the residual stream, of the embeddings and after each layer.",
        "values": "[layers + 1][48]: the first numbers of the residual stream at `position`.",
        "lens": "[layers + 1]: the likeliest next tokens if the model ended there (logit lens).",
        "entropy_bits": "[layers][heads]: of the attention at `position`. 0: it looks at one token.",
        "attention": "[heads][tokens][tokens] of `layer`: how much each token attends to each earlier one.",
    },
    body=sampling_lab.ModelTraceRequest,
    not_found="No such model, or it is not loaded.",
    asks_engine=True,
)
PIPELINE = DebugRoute(
    description="The stages of the pipeline in their order, from auth to ledger, of all tenants together.",
    members={
        "t": "This instant.",
        "window_s": "Seconds that the times are of.",
        "requests": "Requests that ended in the window, at most the newest 256: the times are theirs.",
        "open": "Requests that have not ended.",
        "stages": "For each: `now` (requests or sequences in it at this instant), `count` (passes through it), mean "
        "and percentiles of their times, `refused` (requests that ended there with an error of the client's).",
        "path_us": "Where these requests spent their time: microseconds of their critical paths, by stage.",
        "totals": "Counts since the server started: two answers make a rate.",
        "active": "Whether stages that depend on settings are on.",
    },
    parameters=(_number(name="seconds", description="How far back.", bounds=(1, 600), default=60),),
)
SLO = DebugRoute(
    description="Objectives, alerts and their causes.",
    members={
        "t": "This instant.",
        "window_s": "Seconds that objectives are measured over.",
        "objectives": "Each with its target, its value and whether it is met.",
        "alerts": "Those that are open.",
        "recent": "Those that have ended, the newest first.",
        "webhook": "Whether they are posted somewhere.",
    },
)
LIVE = DebugRoute(
    description="Server-sent events: `hello`, then a `tick` each interval.",
    members={
        "t": "This instant.",
        "stats": "How things stand.",
        "requests": "Those that are open, and those that have ended since the last tick.",
        "steps": "As /observe/steps shows them, if they are wanted: those since the last tick.",
        "alerts": "Those that are open.",
        "dropped": "How many requests and steps were left out.",
    },
    parameters=(
        _integer(name="interval_ms", description="Between two ticks.", bounds=(100, 5000), default=500),
        Parameter(name="steps", description="1: with steps.", choices=("0", "1"), default="0"),
        *REPLICA,
    ),
    not_found="No such model or replica.",
    events=("hello", "tick"),
)
REQUESTS = DebugRoute(
    description="Requests, the newest first.",
    members={
        "requests": "One line each.",
        "more": "Whether there are older ones that match.",
        "kept": "How many are remembered.",
        "total": "How many there have been.",
    },
    parameters=(
        Parameter(name="state", description="Only those.", choices=("open", "done")),
        Parameter(name="kind", description="Only those.", choices=KINDS),
        Parameter(name="batch", description="Only the lines of this batch."),
        Parameter(name="finish", description="Only those that ended so."),
        Parameter(name="model", description="Only those of this model."),
        _integer(name="replica", description="Only those of this replica.", bounds=(0, 10**6)),
        Parameter(name="q", description="Part of an id, or of a text where texts are kept."),
        _number(name="min_ms", description="Only those that took so long.", bounds=(0, 1e9), default=0),
        _integer(
            name="since", description="Only those that ended after this instant, or are open.", bounds=(0, 10**18)
        ),
        _integer(name="until", description="Only those that arrived by this.", bounds=(0, 10**18)),
        _integer(name="before", description="Only those with a smaller number: the next page.", bounds=(0, 10**12)),
        _integer(name="limit", description="At most so many.", bounds=(1, 1000), default=100),
    ),
)
REQUEST = DebugRoute(
    description="All that is known of a request.",
    members={
        "stages": "They follow each other without a gap and add up to the latency.",
        "spans": "The same in full, overlapping as they did.",
        "totals": "Sums over the spans.",
        "sequences": "Each choice: when, in which steps, what it waited for, what was cached and why no more.",
        "events": "What happened, in order.",
        "params": "What was asked for.",
        "route": "Decisions (policy, chosen, considered, warnings) and failed attempts, in their order.",
        "slow_client": "Whether much of the time went into waiting for the client to read.",
        "trace_id": "Of the client's trace.",
        "texts": "Prompts and answers, where they are kept.",
    },
    not_found="No such request is kept.",
)
REPLAY = DebugRoute(
    description="The recorded requests under static and under continuous batching. Computed.",
    members={
        "computed": "Always true.",
        "note": "How.",
        "batch": "Sequences at once.",
        "cost": "Of a step, fitted to this engine's.",
        "requests": "Those that are replayed.",
        "static": "What comes of it if a batch ends before the next begins.",
        "continuous": "And if a place is taken again as soon as it is free.",
    },
    parameters=(
        _integer(name="limit", description="The last so many requests.", bounds=(1, MAX_REPLAYED), default=64),
        _integer(name="batch", description="Sequences at once.", bounds=(1, 512), default=8),
        *REPLICA,
    ),
    not_found="No such model.",
)
STEPS = DebugRoute(
    description="The batch timeline: steps and the rows of sequences in them.",
    members={
        "first": "The oldest step that is kept.",
        "last": "The newest.",
        "from": "The first shown.",
        "to": "The last shown.",
        "stride": "Steps that share a column.",
        "steps": "Lists with an entry for each column.",
        "rows": "Lists with an entry for each sequence in each column.",
        "marks": "Where sequences were let in, sent back, or ended.",
        "sequences": "Whose they are, and which LoRA adapter each has.",
    },
    parameters=(
        _integer(name="last", description="So many of the newest, up to `to`. Default: 400.", bounds=(1, 10**6)),
        _integer(name="from", description="The first step, instead of `last`.", bounds=(0, 10**12)),
        _integer(name="to", description="The last step. Default: the newest.", bounds=(0, 10**12)),
        _integer(name="columns", description="At most so many.", bounds=(1, MAX_COLUMNS), default=2000),
        Parameter(
            name="rows",
            description="0: without rows, marks and sequences, for an overview of many steps.",
            choices=("0", "1"),
            default="1",
        ),
        *REPLICA,
    ),
    not_found="No such model or replica.",
)
CACHE = DebugRoute(
    description="The page map.",
    members={
        "t": "This instant.",
        "block_size": "Tokens in a block.",
        "prefix_caching": "Whether prefixes are shared.",
        "groups": "Blocks by state, of each cache group.",
        "sequences": "What each holds.",
        "fragmentation": "Room in blocks that is held and not used.",
        "evictions": "What had to make room.",
        "hits": "Prompt tokens that were found.",
        "ghosts": "Evicted blocks that are remembered.",
    },
    parameters=REPLICA,
    not_found="No such model or replica.",
    asks_engine=True,
)
TREE = DebugRoute(
    description="The prefixes that are cached, or lately were.",
    members={
        "nodes": "Runs of blocks without a branch; with keep_texts, the text of the first block.",
        "total": "How many there are.",
        "shown": "Of those, here.",
    },
    parameters=(
        _integer(name="limit", description="At most so many leaves.", bounds=(1, 2000), default=400),
        Parameter(name="request", description="Mark the nodes of this one, if it runs."),
        *REPLICA,
    ),
    not_found="No such request, model or replica.",
    asks_engine=True,
)
EXPLAIN = DebugRoute(
    description="How much of a prompt is cached, and why no more.",
    members={
        "prompt_tokens": "Of the prompt.",
        "cached_tokens": "Of those, found.",
        "computed_tokens": "Of those, to be computed.",
        "block_size": "Tokens in a block: what can be shared.",
        "reason": "Why no more; docs/OBSERVE.md has the table.",
        "matched_tokens": "How far the nearest prefix agrees.",
        "diverged_at": "The token at which the prompt leaves it.",
        "evicted_tokens": "Of those that agree, evicted.",
        "evicted_s_ago": "When.",
        "message": "All of it in a sentence.",
        "text": "What stands around that token.",
        "t": "This instant.",
    },
    body=sampling_lab.ExplainRequest,
    not_found="No such model or replica.",
    asks_engine=True,
)
LABORATORY = DebugRoute(
    description="The model's logits behind a prompt, through every stage of sampling.",
    members={
        "prompt_tokens": "Of the prompt.",
        "cached_tokens": "Of those, found in the prefix cache.",
        "position": "Of the token that is drawn.",
        "vocab_size": "Tokens there are to draw from.",
        "us": "What it took.",
        "tokens": "The likeliest, with their logits.",
        "stages": "After each: what is left, the entropy, the probabilities of these tokens.",
        "drawn": "The token that a request with this seed would draw. Null: `response_format` lets none follow.",
        "finish": "How the answer ends with it: `length` is the lab's own end, behind one token.",
        "forced": "The branch taken so far.",
        "end_tokens": "Those that end an answer.",
        "prompt": "Its last tokens.",
    },
    body=sampling_lab.LabRequest,
    not_found="No such model.",
    asks_engine=True,
    generates=True,
)
