"""Questions about Penstock, each with phrases of the documentation that answer it: a document that has one of them is a
right one. The questions were written before anything was measured with them; retrieval is mended in general ways, never
by changing a question."""

from __future__ import annotations

# As newcomers ask, in other words than those of the documentation.
PARAPHRASED: dict[str, tuple[str, ...]] = {
    "What does one line of my upload look like if I want 20,000 prompts done overnight?": (
        '"custom_id": "a", "method"',
    ),
    "If I pull the plug in the middle of an overnight job, do I lose the answers it already has?": (
        "at any moment the next server resumes",
        "and survive a crash of the server",
    ),
    "Will a huge offline job slow down people who are chatting?": (
        "Interactive requests come first",
        "use the capacity that interactive requests leave free",
        "Measured beside a running batch",
        "Lines of batches come last under every policy",
    ),
    "One of my lines has a typo in its body. Does the whole job get thrown away?": (
        "A wrong line fails the batch",
        "fails its line alone",
    ),
    "How long do you keep the files I upload before they are deleted?": ("lifetime of uploaded files",),
    "How do I update to a new version without my users noticing?": ("update without downtime",),
    "Tokens arrive all at once behind my reverse proxy instead of one by one": (
        "the proxy must not buffer them",
        "proxy_buffering off",
    ),
    "What should I check before exposing the machine to the internet?": (
        "Set an API key: without one",
        "Leave `keep_texts` off unless",
        "Terminate TLS at the proxy",
    ),
    "Which URL do I give Kubernetes to know whether the pod is alive?": (
        "Use `/health` as liveness probe",
        "| `GET /health` | liveness",
        "`GET /health` answers while the process lives",
    ),
    "How do I make sure the model never prints credit card numbers?": (
        "patterns = ['sk-",
        "Safety rules block texts on their way into a model",
    ),
    "Can I have my own classifier look at each message, and what if it's down?": (
        "`module:function`** is imported at start",
        "by POST and answers as `/v1/moderations` does",
        "counts as a hit (`on_failure",
        'hook = "https',
    ),
    "What does the user see when a forbidden word turns up in the middle of a stream?": (
        "The client gets the text before the match",
        '`finish_reason: "content_filter"`, `stop_reason`',
    ),
    "Could somebody slow the server to a crawl with a nasty regular expression?": (
        "RE2 matches in linear time",
        "every repetition needs an upper bound",
        "five seconds of CPU time",
    ),
    "An employee has left: how do I make their token stop working immediately?": (
        "`revoke ID`",
        "Requests of a revoked or expired key get a 401",
        "rotate and revoke it",
    ),
    "How do I cap what a customer can spend in a month?": ("| `usd_per_day`, `usd_per_month` |",),
    "What happens to throttling when our Redis goes down?": ("**If Redis does not answer**",),
    "Do I pay for an answer when the caller hangs up halfway?": ("because its client disconnects or stops reading",),
    "How do I get a spreadsheet of what each team consumed?": (
        "format=csv",
        "penstock usage --by",
        "as JSON or CSV",
        "the sums as a table and as CSV",
    ),
    "Who changed this customer's quota last week?": (
        "what changed, the outcome and the request id",
        "`GET /admin/audit`",
        "*Audit log* lists who changed what",
    ),
    "One customer floods us with requests. Do the others starve?": (
        "share an engine fairly",
        "tenants that fill it get 429",
        "the p95 of another's time to the first token",
    ),
    "Can I keep accounts in Postgres instead of a local file?": (
        "postgresql://user@host/name",
        "they need the same `--database`",
    ),
    "Can two customers read each other's stored answers?": (
        "stored responses and chat completions, files and batches",
        "stored responses are visible to it alone",
        "or another tenant's, is a 404",
    ),
    "My Prometheus gets a 403 with its token, what permission is it missing?": (
        "| `observe` | `/metrics`",
        "has them only for keys with both scopes `admin` and `observe`",
        "A key without the scope gets a 403",
    ),
    "How is it decided which copy of the model gets my question?": (
        "fewest tokens to wait for",
        "`routing_policy` chooses among the replicas",
    ),
    "Send hard questions to the large model and easy ones to the small one": (
        "counts signals of the parsed request",
        'models = ["small", "big"]',
    ),
    "Can I put OpenAI behind this server as just another model?": (
        'upstream = "https://api.example.com/v1"',
        "either `model` or `upstream`",
        "models of other OpenAI-compatible servers",
    ),
    "What if the provider I forward to is unavailable?": (
        "or its upstream fails, the request goes to the next model",
        "Everything else that is not an answer becomes `upstream_failed`",
    ),
    "How do I free the GPU at night without stopping the process?": (
        "releases weights and KV cache of a model",
        "Models can be loaded, unloaded, put to sleep",
    ),
    "Which HTTP status do I get when too many people are waiting?": (
        "`--max-waiting` sequences are queued",
        "beyond it clients get a 429",
        "tenants that fill it get 429",
    ),
    "How do I point the Claude command line tool at my own box?": ("**Claude Code** works with `ANTHROPIC_BASE_URL`",),
    "Can my LangChain app that talks to ollama be switched over without changes?": (
        "with LangChain, LlamaIndex",
        "Point a client to the server (`OLLAMA_HOST",
    ),
    "How do I continue an earlier conversation without sending it again?": (
        "`previous_response_id` continues a conversation without its `instructions`",
    ),
    "My React frontend gets blocked by the browser when it calls the API": ("--allow-origin https://app.example",),
    "I get error 421 when I use my hostname": (
        "Other hosts get a 421",
        "the `Host` is not an accepted name",
        "or it answers 421",
    ),
    "What happens if the user closes the tab while the answer is being written?": (
        "cancels its request within a step or two",
    ),
    "The GPU process got stuck, does it recover by itself?": ("the server kills and replaces it as above",),
    "How many seconds do running answers get when I press Ctrl-C?": ("`--drain-s` seconds (30)",),
    "What do clients see while the weights are still being downloaded?": (
        "The server listens before its model is loaded",
        "the model is loading (`model_loading`)",
        "While the server loads its model, the interface shows",
    ),
    "How do I protect my endpoint with a password?": (
        "`--api-key KEY`",
        "Set an API key: without one",
        "For one team, `--api-key` is enough",
        "PENSTOCK_API_KEY=$(openssl",
    ),
    "I want the reply to be exactly one of three words": ('{"type": "choice"', "--choice yes --choice no"),
    "Why was my reply cut although the schema isn't satisfied?": (
        "truncated; the output is a prefix of valid output",
        "without `maxItems`, may run to `max_tokens`",
    ),
    "Can I stop the model from thinking too long?": (
        "limit the reasoning. After that many tokens",
        "the engine closes the reasoning after that many tokens",
    ),
    "How do I let the model call my function, and force it to?": (
        "`required`: at least one call",
        'tool_choice="required"',
        'must = {"type": "any"',
    ),
    "Which parts of a Pydantic schema can't be enforced?": (
        "Not supported, and rejected with an error that names it",
        "the grammar omits keywords that it cannot enforce",
    ),
    "My regular expression is rejected as too complex": ("constraints that become too complex", "50,000 repetitions"),
    "Does recording everything make the server slower?": ("tok/s with events ÷ without",),
    "Why did this prompt sit in the queue for so long?": (
        "gives the reasons it waited before admission",
        "| `slot` | `max_sequences` were running |",
        "queue wait and its reasons",
    ),
    "Notify Slack when responses get slow": (
        "with `--slo-webhook`, as JSON posts",
        "alerts are posted here",
        "a webhook (`slo_webhook`)",
    ),
    "Can I link the calls of my app to the server in Jaeger?": (
        "A valid `traceparent`",
        "OTLP/HTTP endpoint for spans",
    ),
    "How do I see the odds of each candidate word at a position?": (
        "the distribution after each stage",
        "The lab shows the next-token probabilities of the model and after each stage",
        "coloured by the probability the model gave each one",
        "the logits after a prompt, through every stage",
    ),
    "Will a 70B model fit on two cards with 80 GB?": (
        "**Weights** are parameters times the bits",
        "`memory_fraction` of the device's memory is available",
        "penstock plan llama-3.1-70b",
    ),
    "How many tokens a second can I hope for on this GPU in theory?": (
        "A single request gets at most `B / W`",
        "A **ceiling** (roofline) uses",
    ),
    "Does a small draft model make it faster?": ("speed-up = (1 − a^(k+1))", "speculation loses"),
    "How many machines do 50 users a second need?": ("The planner returns the fewest replicas", "--rate 50"),
    "How close are the computed numbers to reality?": ("| computed | measured |",),
    "My chat gets too long for the model: can old messages be condensed instead of lost?": (
        "dropped turns become a summary",
    ),
    "How do I find out which of my snippets were thrown out of the prompt?": (
        "`kept`, `cut`, `dropped`, `summarized`",
        "With `trace: true` the response has `context`",
        "*Context assembly* lists what became of each part",
        "you see what was kept, cut and dropped",
        '"trace": true',
    ),
    "Always include the manual, whatever the question": ("`pinned` documents are never cut or dropped",),
    "How much room is set aside for the reply?": ("reserved for the answer; at least `max_tokens`",),
    "How do I edit an earlier message and try again in the browser?": ("edit messages. Earlier versions stay",),
}

# As people ask who know the terms of the field.
IN_TERMS: dict[str, tuple[str, ...]] = {
    "How many requests may a batch input file have, and how large may it be?": (
        "| lines of a batch | 50,000 |",
        "up to 50,000 requests",
        "`--max-file` (200 MB)",
    ),
    "What does the error code duplicate_custom_id of a batch mean?": ("`duplicate_custom_id`",),
    "Which endpoint do I call to cancel a batch?": ("/v1/batches/{batch_id}/cancel",),
    "Are background sequences preempted when interactive requests come?": (
        "*background sequences*: last in every queue policy, preempted first",
    ),
    "nginx buffering of server-sent events": ("proxy_buffering off", "the proxy must not buffer them"),
    "readiness and liveness probe in Kubernetes": ("Use `/health` as liveness probe", "| `GET /health` | liveness"),
    "Is there a Grafana dashboard, and are there alert rules for Prometheus?": (
        "grafana-dashboard.json",
        "A dashboard and alert rules are in",
    ),
    "Which finish_reason does a filtered answer have in each API?": (
        '`finish_reason: "content_filter"`, `stop_reason`',
    ),
    "moderation hook timeout: fail open or closed?": ("A hook that does not answer within `timeout_s`",),
    "How long may a pattern of a safety rule match?": ("matches of at most 1,000 characters",),
    "How do I rotate an API key with a grace period?": ("`rotate ID --grace 1h`",),
    "Which scope is needed to read /metrics?": (
        "| `observe` | `/metrics`",
        "has them only for keys with both scopes `admin` and `observe`",
    ),
    "Are tokens_per_minute counted in a sliding window?": ("windows slide",),
    "What does x-ratelimit-remaining-tokens say?": ("x-ratelimit-limit-requests",),
    "price of cached input tokens in the ledger": ("cached_input = 0.075", "cached tokens at their own price"),
    "Does the audit log record who unloaded a model?": ("loaded, unloaded, put to sleep, woken or pulled",),
    "virtual token counter and weights of tenants": ("virtual token counter in its tier",),
    "Is the prefix cache shared between tenants?": (
        "The keys of a tenant share its cached prefixes",
        "request records and stored responses are visible to it alone",
        "never share blocks",
        "sees its own requests, sequences and cached prefixes",
    ),
    "PostgreSQL URL for several servers": ("postgresql://user@host/name", "they need the same `--database`"),
    "How does the prefix routing policy choose a replica?": ("fewest tokens to wait for",),
    "When does the circuit breaker open, and for how long?": ("gets no requests for 5 s",),
    "Which capabilities can an upstream declare?": ("are declared; the default is `chat`",),
    "How long is an idle model kept loaded with keep_alive?": (
        'keep_alive = "10m"',
        "how long the idle model stays loaded",
        "sets how long an idle model stays",
    ),
    "What is the status code if the body exceeds the maximum size?": ("the body exceeds `--max-body`",),
    "thinking budget_tokens in the Messages API": (
        "`budget_tokens` of `enabled` is enforced",
        "`thinking.budget_tokens`",
    ),
    "Is num_ctx of Ollama's options honoured?": ("the server sets the context (`--context`",),
    "What is stored of a response, how many and for how long?": ("the 4096 most recently used",),
    "Does the server accept preflight OPTIONS requests without a key?": ("(`OPTIONS`) need no key",),
    "After how many seconds without progress is a hung engine killed?": ("After `--hang-s` seconds (300)",),
    "drain time at SIGTERM": ("`--drain-s` seconds (30)", "finish for `drain_s` seconds"),
    "guided_json and guided_regex as in vLLM": ("`guided_json`, `guided_regex`",),
    "Is uniqueItems supported in JSON schemas?": (
        "rejected with an error that names it: `not`, `if`, `uniqueItems`",
        "keywords that it cannot enforce: `propertyNames`, `uniqueItems`",
    ),
    "tool_choice required and parallel_tool_calls": ("`required`: at least one call",),
    "How much memory and CPU time may the compilation of a grammar take?": ("five seconds of CPU time",),
    "What is the overhead of recording events, in microseconds per step?": ("make, encode and decode the record",),
    "What do the wait reasons slot, blocks and budget mean?": ("| `slot` | `max_sequences` were running |",),
    "traceparent and OTLP spans": ("A valid `traceparent`", "OTLP/HTTP endpoint for spans"),
    "How many bytes of KV cache does a token of Llama 70B take?": ("= 320 KiB",),
    "roofline of decode: bandwidth or compute bound?": ("step(b) = max(", "the *balance batch* solves"),
    "expected tokens per verification by acceptance rate": ("1 + a + a²",),
    "Erlang C waiting time of replicas": ("the probability of Erlang C",),
    "Which history policies are there when turns have no room?": ("| `drop_oldest` |",),
    "Can documents be pinned so that they are never cut?": ("`pinned` documents are never cut or dropped",),
    "How is the KV block map shown in the web interface?": ("The page shows every KV block (free, in use",),
    "How do I build the UI with Node.js?": ("`make ui` builds by hand", "with Node.js 20.19"),
}

# The first ones, in the words of the documentation.
FIRST: dict[str, tuple[str, ...]] = {
    "Which requests go first, those of a batch or those of clients that wait?": (
        "Interactive requests come first",
        "Lines of batches come last under every policy",
        "use the capacity that interactive requests leave free",
    ),
    "What happens to a batch when the server crashes or restarts?": (
        "at any moment the next server resumes",
        "and survive a crash of the server",
    ),
    "Through which states does a batch go until it is completed?": ("validating ──► in_progress",),
    "How can I watch the progress of a batch?": (
        "lists the lines of a batch like other requests",
        "`request_counts` and `usage` are up to date",
    ),
    "How do I run it as a systemd service?": ("systemctl enable --now penstock",),
    "How do I configure nginx as a proxy in front?": ("proxy_buffering off",),
    "How do I scrape it with Prometheus and get a Grafana dashboard?": ("grafana-dashboard.json",),
    "Why was my prompt not in the prefix cache?": (
        "the nearest cached or recently evicted prefix",
        "why a prompt hits or misses the prefix cache",
    ),
    "What does the sampling lab show of the next token?": (
        "the distribution after each stage",
        "The lab shows the next-token probabilities of the model and after each stage",
        "the logits after a prompt, through every stage",
    ),
    "How do I set SLO objectives and get alerts by webhook?": ("--slo-webhook", "slo_webhook"),
    "Which Prometheus metrics are there?": ("time_to_first_token_seconds", "Names and buckets follow the conventions"),
    "How do I export traces to OpenTelemetry, and logs as JSON?": ("--otel-endpoint",),
    "How is the memory of the KV cache per token computed?": ("2 · L · K · d",),
    "How does tensor parallelism over several devices change the plan?": (
        "Tensor parallelism gives each of n devices",
    ),
    "What speedup does speculative decoding give by acceptance of drafts?": ("(1 − a^(k+1)) / ((1 − a)",),
    "How many replicas does a rate of requests need, and how long do they wait?": (
        "The planner returns the fewest replicas",
        "the probability of Erlang C",
    ),
    "How accurate are the planner's predictions against measurements?": ("| computed | measured |",),
    "What does the planner not model?": ("Mixture of experts, pipeline parallelism",),
    "How do I add an upstream with api_key_env?": ("api_key_env = ",),
    "Which model takes over when another fails, and within which deadline?": ("fallback_deadline_s",),
    "How does model auto choose by size class?": ("counts signals of the parsed request",),
    "How do I serve several models with [[models]] in the config?": (
        "`[[models]]` in the settings file has more options for each",
        'name = "coder"',
    ),
    "How do Claude Code and the Anthropic SDK connect to /v1/messages?": (
        "ANTHROPIC_BASE_URL",
        "anthropic.Anthropic(base_url",
    ),
    "What is previous_response_id, and how long are responses stored?": (
        "`previous_response_id` continues a conversation without its `instructions`",
        "the 4096 most recently used",
    ),
    "Which routes of Ollama are there, and what does keep_alive do?": (
        "how long the idle model stays loaded; a request",
        "`/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`",
    ),
    "Which Host headers are accepted against DNS rebinding?": (
        "`Host` header must be `localhost`",
        "accepts only the hosts `localhost`",
    ),
    "How do I allow a web page of another origin (CORS)?": ("--allow-origin https://app.example",),
    "What happens when a client disconnects or reads slowly?": (
        "cancels its request within a step or two",
        "keeps up gets one event per token",
    ),
    "What happens to requests when the engine process crashes or hangs?": (
        "If it dies, requests with output end at once",
        "After `--hang-s` seconds",
        "another takes over every request whose client has seen nothing",
    ),
    "How does a shutdown drain running requests?": ("`--drain-s` seconds", "finish for `drain_s` seconds"),
    "How do I force the output to match a regex on the command line?": ("`--regex …`",),
    "Which finish_reason is dead_end?": ("| `dead_end` |", "no token of the vocabulary can follow"),
    "Which EBNF or GBNF grammars are supported?": ("is parsed as EBNF, as in llama.cpp (GBNF)",),
    "How are reasoning and the thinking budget handled?": (
        "`thinking_token_budget` (vLLM's name",
        "`budget_tokens` of `enabled` is enforced",
    ),
    "What limits are there on the compilation of constraints?": ("512 KiB of source",),
    "How do I build the web interface?": ("`make ui` builds by hand",),
}
