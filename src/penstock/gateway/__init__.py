"""Between the HTTP layer and the deployments: which deployment works on a request, and what happens when it fails.

candidate      a deployment and a request, as plain values at the moment of a decision
policies       pure functions that rank candidates: load, prefix, ttft, cost, name
decision       filters and one policy over a snapshot; the record of what was considered and why
size_class     signals of a request that say how large a model it needs (`model: "auto"`)
breaker        a circuit breaker per deployment
backoff        delays between attempts: jitter, Retry-After, a deadline
recent_work    how much a deployment was given of late
track          what the router remembers of a deployment
router         takes snapshots, picks among the deployments of a model, learns from what became of requests
fallback       one client's request over several attempts and models
route_model    a name for several models, such as `auto`
gateway        all of these, as the HTTP service uses them
metrics        what they have counted, for Prometheus
context/       prompts assembled under a token budget, with a trace
keys/          API keys: who sends a request, and what that key may do
limits/        limits that hold: requests reserve before dispatch and settle what they have used
ledger/        usage records: what each request used and costs
accounting     reserves the limits of a request, measures its usage, records and settles it

Policies see values only, never a deployment or a clock. No HTTP server code and no torch.
"""
