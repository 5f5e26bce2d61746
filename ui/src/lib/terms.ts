/** Terms of each page, with a short explanation. */

export type Term = readonly [name: string, meaning: string];

export const TERMS = {
  playground: [
    ["Token", "A piece of text, often part of a word. The tokenizer splits the prompt into tokens; the model generates one token at a time."],
    ["TTFT", "Time to first token: network, queue and prefill."],
    ["tok/s", "Generated tokens per second after the first one. Concurrent requests share the device."],
    ["Cached", "Prompt tokens whose keys and values come from the prefix cache: their prefill is skipped."],
    ["Confidence", "Geometric mean of the probabilities that the model gave the generated tokens."],
  ],
  requests: [
    ["Prompt, output", "Prompt tokens and generated tokens."],
    ["Cached", "Prompt tokens whose keys and values come from the prefix cache: their prefill is skipped."],
    ["TTFT", "Time to first token, from the arrival of the request."],
    ["Bar", "How the total latency divides into queue, prefill and decode. All bars share one time scale; bars that fade out are longer."],
    ["State", "The current state, or the finish reason: “end” is an end-of-sequence token, “length” is max_tokens."],
  ],
  batch: [
    ["Step", "One forward pass over all sequences of the batch."],
    ["Prefill", "Computes the prompt, many tokens per step. Long prompts are split into chunks (chunked prefill)."],
    ["Decode", "Generates one token per sequence and step. A step reads all weights once, whatever the batch size: that is why batching pays."],
    ["Continuous batching", "Sequences join and leave the batch at every step, instead of waiting for a whole batch to finish."],
    ["Preempted", "Returned to the queue because no KV block was free; its KV is recomputed later."],
    ["Step time", "A dark tip marks a step that took longer than the scale."],
  ],
  cache: [
    ["KV cache", "Keys and values of all previous tokens, kept because attention reads them for every new token."],
    ["KV block", "Keys and values of a fixed number of tokens (a page). A sequence allocates blocks as it grows, anywhere in memory."],
    ["Prefix cache", "Prompts with a common prefix share its full blocks: a later prompt skips their prefill."],
    ["Evicted", "When no block is free, the least recently used cached block is evicted."],
    ["Resting", "Freed, but a step in flight may still read it."],
  ],
  lab: [
    ["Logit", "The model’s score of a token, one per vocabulary entry. Softmax turns logits into probabilities."],
    ["Temperature", "Divides the logits: below 1 sharpens the distribution, above 1 flattens it."],
    ["Top-k, top-p, min-p", "Filters: keep the k most likely tokens; the smallest set with cumulative probability p; tokens above p times the highest probability."],
    ["Entropy", "Uncertainty of the distribution. 0 bits: one token is certain; each bit doubles the number of equally likely tokens."],
    ["Sampled", "The token that a request with this seed generates here."],
  ],
  planner: [
    ["Ceiling, expected", "The ceiling (roofline) uses all of the device’s FLOP/s and bandwidth. The expected value applies the efficiencies of the form."],
    ["Bound by", "What limits a step: reading weights and KV (bandwidth) or arithmetic (compute). Larger batches amortize the weight reads."],
    ["KV per token", "Bytes of keys and values per token. With the weights it decides how many requests fit."],
    ["Prefill, decode", "Prefill computes the prompt, many tokens per step; decode generates one token per step."],
  ],
  models: [
    ["Model, replica", "Clients name a model. Each of its replicas is an engine process with weights and KV cache of its own."],
    ["Upstream", "A model of another OpenAI-compatible server, reached over the network."],
    ["Route", "A name for several models; a policy chooses one for each request."],
    ["Unload, sleep", "Unload ends the processes. Sleep releases the memory and keeps the processes; waking is faster. A request loads or wakes the model."],
    ["Pinned", "Never unloaded to make room for another model."],
    ["Circuit breaker", "Closed: requests pass. Open: the deployment failed too often and gets none for a while. Half open: one request is the probe. Held: it asked for a pause."],
    ["Fallback", "Models that answer, in this order, if this one fails before its first output."],
  ],
  keys: [
    ["Tenant", "A team or customer. It owns its keys, cached prefixes, request records, stored responses and usage; others see nothing of them."],
    ["Key", "Belongs to a tenant. Only a hash is stored: the key itself is shown once."],
    ["Scope", "inference: generate and embed; observe: metrics and the tenant’s own records; admin: models, keys, tenants, audit log."],
    ["Limits", "Of a key and of its tenant; both hold. Requests and tokens count for 60 seconds, with no calendar minutes."],
    ["Reserved", "Held by requests under way: prompt and the largest output. What they do not use is given back at their end."],
    ["Budget", "USD per UTC day and month, by the prices of the models."],
    ["Tier, weight", "Requests of an earlier tier go first. Within a tier, tenants that wait share the engine by their weights."],
  ],
  usage: [
    ["Ledger", "One record per request, written before its end is sent: also of requests that were cancelled or failed."],
    ["Input, cached", "Prompt tokens, and those of them that the prefix cache had."],
    ["Cost", "By the price of the model that answered, in USD per million tokens. A model without a price costs nothing."],
    ["Saved", "What cached input would have cost more at the price of other input."],
    ["Day", "UTC. A request counts on the day on which it ended."],
  ],
  dashboard: [
    ["p50, p95, p99", "Median, 95th and 99th percentile of what happened between two points."],
    ["TTFT", "Time to first token: queue and prefill."],
    ["Inter-token latency (ITL)", "Time between two tokens of a sequence, of every token."],
    ["Request latency", "End-to-end latency of the requests that ended."],
    ["Queue time", "From arrival in the queue to the first step."],
    ["Preemption", "A sequence returned to the queue because no KV block was free; its KV is recomputed."],
    ["Objective", "A service-level objective (SLO), set with --slo-*. A missed objective raises an alert that names the likely cause."],
    ["Prefix cache hit rate", "Share of prompt tokens found in the prefix cache."],
  ],
} satisfies Record<string, readonly Term[]>;
