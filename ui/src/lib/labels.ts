/** Display labels of stages, wait reasons, finish reasons and alert causes. */

export const STAGE_COLOURS: Record<string, string> = {
  intake: "intake",
  validate: "intake",
  context: "intake",
  limits: "intake",
  route: "intake",
  template: "intake",
  tokenize: "intake",
  submit: "intake",
  prefill_replica: "prefill",
  kv_transfer: "prefill",
  queue: "wait",
  wait: "wait",
  prefill: "prefill",
  decode: "decode",
  preempted: "preempted",
  ipc: "output",
  deliver: "output",
  detokenize: "output",
  write: "output",
  ledger: "output",
};

export const STAGES: Record<string, string> = {
  intake: "Read request",
  validate: "Validate",
  context: "Context assembly",
  limits: "Reserve limits",
  route: "Route",
  template: "Chat template",
  tokenize: "Tokenize",
  submit: "Submit to engine",
  prefill_replica: "Prefill at a prefill replica",
  kv_transfer: "Transfer of KV blocks",
  queue: "Queue",
  wait: "Wait",
  prefill: "Prefill",
  decode: "Decode",
  ipc: "IPC",
  deliver: "Deliver",
  detokenize: "Detokenize",
  write: "Write to socket",
  ledger: "Ledger",
};

export const WAITS: Record<string, string> = {
  slot: "no free slot (max_sequences)",
  blocks: "not enough free KV blocks",
  budget: "step token budget used up (step_tokens)",
  prefix: "shared prefix being computed by another request",
  constraint: "constraint being compiled",
  adapter: "adapter being loaded",
  share: "other tenants' turn (fair share)",
  fetch: "prefix being fetched from a lower cache tier",
  priority: "requests of higher priority ahead",
  step: "current step not finished",
};

export const FINISHES: Record<string, string> = {
  end: "The model sampled an end-of-sequence token.",
  length: "The output reached max_tokens.",
  stop_string: "The output contains a stop string.",
  stop_token: "The model sampled a stop token.",
  complete: "The constrained output is complete.",
  dead_end: "The constraint allows no next token.",
  content_filter: "A safety rule matched the output.",
  context: "The context is full.",
  timeout: "The request timed out.",
  cancelled: "The client cancelled or disconnected.",
  error: "The request failed.",
  rejected: "The server rejected the request before it reached the engine.",
};

export function finishTone(finish: string | null): string {
  if (finish === null) return "accent";
  if (finish === "error") return "bad";
  return ["rejected", "timeout", "cancelled", "dead_end", "content_filter"].includes(finish) ? "warn" : "plain";
}

/** States of models and deployments. */
export const STATES: Record<string, string> = {
  ready: "Takes requests.",
  starting: "Its engine process starts.",
  unloaded: "No process; a request loads it.",
  asleep: "Its memory is released, its processes stay; a request wakes it.",
  draining: "It finishes its requests and takes no more; then it goes.",
  restarting: "Its process died; the next one starts.",
  closed: "Takes no requests.",
};

export function stateTone(state: string): string {
  if (state === "ready") return "good";
  if (state === "closed") return "bad";
  return state === "starting" || state === "restarting" || state === "draining" ? "warn" : "plain";
}

/** States of circuit breakers. */
export const CIRCUITS: Record<string, string> = {
  closed: "Takes requests.",
  open: "Failed too often: gets no requests for a while.",
  half_open: "The next request is a probe.",
  held: "Asked for a pause (Retry-After).",
};

/** Routing policies. */
export const POLICIES: Record<string, string> = {
  prefix: "fewest tokens to compute and to wait for",
  load: "fewest queued tokens",
  ttft: "meets the TTFT target at the lowest price, else the fastest",
  cost: "lowest price",
  name: "first in the configured order",
  size: "small models for simple requests, large ones for hard requests",
};

/** Why a request was refused, in a few letters, for lists. */
const SHORT_ERRORS: Record<string, string> = {
  rate_limit_exceeded: "rate limit",
  insufficient_quota: "budget",
  model_not_found: "no such model",
  invalid_request: "invalid",
  context_length_exceeded: "too long",
  limits_unavailable: "limits away",
  ledger_unavailable: "ledger away",
  client_gone: "disconnected",
};
export const shortError = (code: string): string => SHORT_ERRORS[code] ?? code.replaceAll("_", " ");

/** Why a request was refused, by error code. */
export const ERRORS: Record<string, string> = {
  invalid_request: "a field of the request is invalid; the same request fails again.",
  context_length_exceeded: "prompt and max_tokens do not fit the context.",
  invalid_api_key: "the API key is missing, wrong, expired or revoked.",
  forbidden: "the API key may not do this.",
  model_not_found: "this server has no such model, or the key may not use it.",
  queue_full: "max_waiting sequences are waiting. Try again later.",
  rate_limit_exceeded: "a limit per minute or of concurrent requests is used up. Retry-After says when there is room.",
  insufficient_quota: "the budget of the day or month is used up.",
  limits_unavailable: "limits cannot be checked now, and limits_unavailable is closed.",
  ledger_unavailable: "usage cannot be recorded now.",
  key_revoked: "the key was revoked while the request ran.",
  key_expired: "the key expired while the request ran.",
  request_too_large: "the body is larger than max_body.",
  model_loading: "the model is loading. Try again in a moment.",
  upstream_busy: "the upstream is overloaded.",
  upstream_failed: "the upstream failed, or its answer is invalid.",
  upstream_timeout: "no output in time.",
  engine_died: "the engine process died. The request may be sent again.",
  shutting_down: "the server is shutting down.",
  client_gone: "the client disconnected before its request was complete.",
};

export const CAUSES: Record<string, string> = {
  queue: "Queue",
  long_prefill: "Long prefills",
  cache_thrashing: "Cache thrashing",
  slow_client: "Slow client",
  engine_down: "Engine down",
  gpu_memory: "GPU memory",
  spend_spike: "Cost spike",
  errors: "Errors",
  load: "Load",
  unknown: "Unknown",
};
