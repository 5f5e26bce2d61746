/** The engine's words, as people read them. */

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
  intake: "Read the request",
  validate: "Validate",
  template: "Chat template",
  tokenize: "Tokenize",
  submit: "Hand to the engine",
  queue: "Queue",
  wait: "Wait",
  prefill: "Prefill",
  decode: "Decode",
  ipc: "Between processes",
  deliver: "Deliver",
  detokenize: "Detokenize",
  write: "Write to the socket",
};

export const WAITS: Record<string, string> = {
  slot: "all slots were taken",
  blocks: "there were too few free KV blocks",
  budget: "the step’s token budget was spent",
  prefix: "another request was computing the same prefix",
  constraint: "its grammar or schema was being compiled",
  priority: "requests of higher priority went first",
  step: "the step under way had to end first",
};

export const FINISHES: Record<string, string> = {
  end: "The model ended its answer.",
  length: "It reached the most tokens asked for.",
  stop_string: "A stop text came up.",
  stop_token: "A stop token came up.",
  complete: "What the answer had to look like is fulfilled.",
  dead_end: "No token could follow in the form that was asked for.",
  context: "The context was full.",
  timeout: "Its time limit was up.",
  cancelled: "The client went away, or stopped it.",
  error: "It failed.",
  rejected: "It was refused before the engine saw it.",
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
