/** Response types of the server's own routes. Instants and `*_us` are microseconds since the server's start. */

/** /health of a server that starts. */
export interface StartStatus {
  phase: string;
  done_bytes?: number; // of a download
  total_bytes?: number;
}

export interface Facts {
  version: string;
  started_unix: number;
  now: number;
  ready: boolean;
  events: boolean;
  keep_texts: boolean;
  keys: boolean;
  scopes: string[]; // of the key in use
  model: { name: string; architecture?: string; weights?: string; context: number; vocab_size: number } & Record<string, unknown>;
  engine: {
    device: string;
    dtype: string;
    context: number;
    weights_bytes: number;
    kv_bytes: number;
    kv_tokens: number;
    block_size: number;
    max_sequences: number;
    step_tokens: number;
  } & Record<string, unknown>;
  settings: { tenants?: { keys: boolean; ledger: boolean; revoked_streams: "end" | "finish" } } & Record<string, unknown>;
  sampling: Record<string, number>;
  measured: Measured;
  replica: number;
  models: { name: string; state: string; replicas: { replica: number; state: string }[] }[];
}

export interface StepCost {
  fixed_us: number;
  decode_row_us: number;
  prefill_token_us: number;
}

export interface Measured {
  prefill_tokens_per_s: number | null;
  decode_tokens_per_s: number | null;
  decode_by_batch: { batch: number; steps: number; step_us_p50: number; tokens_per_s: number }[];
  ttft_us_p50: number | null;
  ttft_us_p95: number | null;
  tokens_per_s_peak: number | null;
  step_cost: StepCost | null;
}

export interface KvGroup {
  total: number;
  held: number;
  shared: number;
  resting: number;
  cached: number;
  free: number;
}

export type WaitReason =
  | "slot" | "blocks" | "budget" | "prefix" | "constraint" | "adapter" | "share" | "fetch" | "priority" | "step";

export interface Stats {
  running: number;
  waiting: number;
  waiting_by_reason: Partial<Record<WaitReason, number>>;
  open: number;
  kv: KvGroup[];
  kv_use: number;
  tokens_per_s: number;
  prompt_tokens_per_s: number;
  steps: number;
  step_us_mean: number | null;
  batch_mean: number | null;
  preemptions: number;
  prefix_hit_tokens: number;
  prompt_tokens: number;
  output_tokens: number;
  evictions: number;
  ttft_us_p50: number | null;
  ttft_us_p95: number | null;
  errors: number;
  gpu: { utilisation: number; memory_used: number; memory_total: number } | null;
  ready: boolean;
  restarts: number;
}

export interface Summary {
  number: number;
  id: string;
  request_id: string;
  kind: string;
  model: string | null; // null: rejected before it was known
  replica: number | null; // null: no replica has had it
  asked: string | null; // the model that the client named
  batch?: string | null;
  stream: boolean;
  state: "accepted" | "queued" | "running" | "done";
  t: number;
  end: number | null;
  prompts: number;
  choices: number;
  prompt_tokens: number | null;
  cached_tokens: number | null;
  output_tokens: number | null;
  cost_usd: number | null; // null: its model has no price
  queue_us: number | null;
  ttft_us: number | null;
  e2e_us: number | null;
  tokens_per_s: number | null;
  waited_for: WaitReason | null;
  preemptions: number;
  finish: string | null;
  error: { code: string | null; message: string; status: number } | null;
  opening: string | null; // how its prompt begins, with --keep-texts
  seqs: number[];
}

export interface Stage {
  name: string;
  start: number;
  end: number;
  us: number;
}

export interface Span {
  stage: string;
  seq: number | null;
  start: number;
  end: number;
  step: number | null;
  tokens: number | null;
  count: number;
}

export interface Explanation {
  prompt_tokens: number;
  cached_tokens: number;
  block_size: number;
  reason: "full" | "diverged" | "extends" | "evicted" | "too_short" | "nothing_alike" | "off" | "not_read";
  matched_tokens: number;
  diverged_at: number | null;
  evicted_tokens: number;
  evicted_s_ago: number | null;
  computed_tokens: number;
  message: string;
  text: { before: string; at: string; after: string } | null;
}

export interface SequenceDetail {
  seq: number;
  prompt: number;
  choice: number;
  prompt_tokens: number;
  cached_tokens: number | null;
  output_tokens: number;
  queued_at: number | null;
  received_at: number | null;
  admitted_at: number | null;
  first_token_at: number | null;
  finished_at: number | null;
  first_step: number | null;
  last_step: number | null;
  wait: { reason: WaitReason | null; by_us: Partial<Record<WaitReason, number>>; ahead: number; overtaken: number } | null;
  preemptions: { t: number; step: number; why: string }[];
  finish: string | null;
  stop: string | number | null;
  inter_token_us: { p50: number | null; p95: number | null; max: number | null } | null;
  cache: Explanation | null;
}

/** A routing decision, or an attempt that failed. */
export type RouteStep =
  | {
      kind: "decision";
      policy: string;
      chosen: string | null;
      considered: { name: string; chosen: boolean; reason: string; score: number | null }[]; // a smaller score is better
      warnings: string[];
    }
  | { kind: "failure"; name: string; code: string; message: string };

export interface SafetyHit {
  t: number;
  rule: string;
  where: string;
  part: string;
  text: string | null;
}

export interface ContextTrace {
  model: string;
  limit: number;
  reserved_output: number;
  prompt_tokens: number;
  history: string;
  rank: string | null;
  placement: string | null;
  parts: { kind: string; action: string; tokens: number; id?: string; given_tokens?: number; score?: number; why?: string }[];
  calls: { kind: string; model: string; requests: number; prompt_tokens: number; output_tokens: number; cached_tokens: number; cost_usd: number | null }[];
}

export interface RequestDetail extends Summary {
  stages: Stage[];
  spans: Span[];
  totals: Record<string, number | null>;
  sequences: SequenceDetail[];
  events: ({ t: number; name: string; seq: number | null } & Record<string, unknown>)[];
  params: Record<string, unknown>;
  context: ContextTrace | null;
  route: RouteStep[];
  safety: SafetyHit[];
  slow_client: boolean;
  texts: { prompts: string[]; answers: string[] } | null;
}

export interface StepWindow {
  first: number;
  last: number;
  from: number;
  to: number;
  stride: number;
  steps: {
    number: number[];
    start: number[];
    us: number[];
    plan_us: number[];
    forward_us: number[];
    settle_us: number[];
    tokens: number[];
    rows: number[];
    running: number[];
    waiting: number[];
    held: number[];
    free: number[];
    cached: number[];
    blocked: (string | null)[];
  };
  rows: { column: number[]; seq: number[]; tokens: number[]; kind: number[] };
  marks: { column: number; step: number; seq: number; kind: "admitted" | "preempted" | "finished"; why: string | null; cached: number | null }[];
  sequences: Record<string, SequenceInWindow>;
}

export interface SequenceInWindow {
  request: number;
  id: string;
  /** LoRA adapter of its rows; null: the base model. */
  adapter: string | null;
  prompt_tokens: number;
  queued_at: number | null;
  admitted_at: number | null;
  first_token_at: number | null;
  finished_at: number | null;
  finish: string | null;
}

export interface ReplayRow {
  seq: number;
  lane: number;
  start: number;
  prefill_end: number;
  end: number;
  released: number;
}

export interface ReplayRun {
  makespan_us: number;
  tokens_per_s: number;
  latency_us_mean: number;
  latency_us_p95: number;
  ttft_us_mean: number;
  utilisation: number;
  rows: ReplayRow[];
}

export interface Replay {
  computed: true;
  note: string;
  batch: number;
  cost: StepCost | null;
  requests: { seq: number; request: number; arrival: number; prompt_tokens: number; cached_tokens: number; output_tokens: number }[];
  static: ReplayRun | null;
  continuous: ReplayRun | null;
}

export interface CacheMap {
  t: number;
  block_size: number;
  prefix_caching: boolean;
  groups: ({ window: number; cell_blocks: number; runs: [number, number, number][] } & KvGroup)[];
  sequences: Record<string, { request: number; blocks: number; tokens: number; waste_tokens: number }>;
  fragmentation: { waste_tokens: number; held_tokens_capacity: number; ratio: number };
  evictions: { total: number; last_60_s: number; recent: { t: number; tokens: number; depth: number; hits: number }[] };
  hits: { prompt_tokens: number; hit_tokens: number; ratio: number | null };
  ghosts: number;
}

export interface TreeNode {
  id: string;
  parent: string | null;
  depth: number;
  blocks: number;
  tokens: number;
  hits: number;
  state: "held" | "cached" | "evicted";
  holders: number;
  own: boolean;
  idle_s: number | null; // since eviction; null if not evicted
  text: string | null; // of its first block, with --keep-texts
}

export interface LabToken {
  id: number;
  text: string;
  logit: number;
}

export interface LabStage {
  name: string;
  on: boolean;
  kept: number;
  entropy_bits: number;
  probs: number[];
}

export interface LabAnswer {
  prompt_tokens: number;
  cached_tokens: number;
  position: number;
  vocab_size: number;
  us: number;
  tokens: LabToken[];
  stages: LabStage[];
  drawn: { id: number; text: string } | null; // null: the constraint allows no next token
  finish: string;
  forced: { id: number; text: string }[];
  end_tokens: number[];
  prompt: { id: number; text: string }[];
}

export type Series = (number | null)[];

export interface History {
  interval_s: number;
  t: number[];
  [name: string]: Series | number;
}

export interface Alert {
  id: number;
  objective: string;
  since: number;
  until: number | null;
  value: number | null;
  target: number | null;
  cause: string;
  message: string;
  requests: string[];
}

export interface Slo {
  t: number;
  window_s: number;
  objectives: {
    name: string;
    title: string;
    unit: string;
    op: "<=" | ">=";
    target: number | null;
    value: number | null;
    samples: number;
    ok: boolean | null;
  }[];
  alerts: Alert[];
  recent: Alert[];
  webhook: boolean;
}

export interface Tick {
  t: number;
  stats: Stats;
  requests: Summary[];
  steps: StepWindow | null;
  alerts: Alert[];
  dropped: number;
}
