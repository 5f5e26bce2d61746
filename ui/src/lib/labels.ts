/** Display labels of stages, wait reasons, finish reasons and alert causes. */

export const STAGE_COLOURS: Record<string, string> = {
  intake: "intake",
  validate: "intake",
  template: "intake",
  tokenize: "intake",
  submit: "intake",
  queue: "wait",
  wait: "wait",
  prefill: "prefill",
  decode: "decode",
  preempted: "preempted",
  ipc: "output",
  deliver: "output",
  detokenize: "output",
  write: "output",
};

export const STAGES: Record<string, string> = {
  intake: "Read request",
  validate: "Validate",
  template: "Chat template",
  tokenize: "Tokenize",
  submit: "Submit to engine",
  queue: "Queue",
  wait: "Wait",
  prefill: "Prefill",
  decode: "Decode",
  ipc: "IPC",
  deliver: "Deliver",
  detokenize: "Detokenize",
  write: "Write to socket",
};

export const WAITS: Record<string, string> = {
  slot: "no free slot (max_sequences)",
  blocks: "not enough free KV blocks",
  budget: "step token budget used up (step_tokens)",
  prefix: "shared prefix being computed by another request",
  constraint: "constraint being compiled",
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
  context: "The context is full.",
  timeout: "The request timed out.",
  cancelled: "The client cancelled or disconnected.",
  error: "The request failed.",
  rejected: "The server rejected the request before it reached the engine.",
};

export function finishTone(finish: string | null): string {
  if (finish === null) return "accent";
  if (finish === "error") return "bad";
  return ["rejected", "timeout", "cancelled", "dead_end"].includes(finish) ? "warn" : "plain";
}

export const CAUSES: Record<string, string> = {
  queue: "Queue",
  long_prefill: "Long prefills",
  cache_thrashing: "Cache thrashing",
  slow_client: "Slow client",
  engine_down: "Engine down",
  errors: "Errors",
  load: "Load",
  unknown: "Unknown",
};
