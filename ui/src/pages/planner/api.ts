/** Request and response types of the planner. Units are in the names. */
import type { ContextTrace } from "../../lib/api";

export interface Presets {
  model: string;
  models: { name: string; parameters: number; layers: number; hidden: number; intermediate: number; heads: number; kv_heads: number; head_dim: number; vocab: number; context: number }[];
  hardware: Hardware[];
  formats: { name: string; bits: number }[];
  kv_formats: string[];
  defaults: Record<string, number | string | null>;
  /** Formats that Penstock cannot run, by kind of device. */
  not_run: Record<"cpu" | "gpu", { weights: string[]; kv: string[] }>;
}

export interface Hardware {
  name: string;
  label: string;
  kind: "cpu" | "gpu";
  memory_bytes: number;
  bandwidth_bytes_s: number;
  flops: number;
  fp8_flops: number | null;
  link_bytes_s: number | null;
}

export interface Plan {
  /** With its defaults. */
  question: Record<string, number | string | null>;
  not_run: string[];
  model: { name: string; parameters: number; layers: number; heads: number; kv_heads: number; head_dim: number; context: number; weights_bytes: number };
  hardware: Hardware;
  devices: number;
  memory: {
    total_bytes: number;
    budget_bytes: number;
    weights_bytes: number;
    workspace_bytes: number;
    kv_bytes: number | null;
    fits: boolean;
    missing_bytes: number;
    formats: { name: string; bits: number; weights_bytes: number; fits: boolean }[];
  };
  kv: {
    formula: string;
    formats: { name: string; bits: number; bytes_per_token: number; request_bytes: number; concurrent_requests: number }[];
    bytes_per_token: number;
    bytes_per_token_late: number;
    request_tokens: number;
    request_bytes: number;
    tokens: number | null;
    longest_context: number | null;
    concurrent_requests: number | null;
  };
  prefill: { tokens: number; flop: number; ceiling_s: number; expected_s: number; tokens_per_s: number; bound: string } | null;
  decode: {
    context_tokens: number;
    balance_batch: number | null;
    curve: { batch: number; ceiling_s: number; expected_s: number; tokens_per_s: number; request_tokens_per_s: number; bound: string; ceiling_tokens_per_s: number }[];
  };
  parallel: {
    degree: number;
    possible: boolean;
    problem: string | null;
    weights_bytes: number | null;
    kv_bytes_per_token: number | null;
    fits: boolean | null;
    concurrent_requests: number | null;
    allreduce_bytes_per_token: number | null;
    prefill_s: number | null;
    decode_s: number | null;
    tokens_per_s: number | null;
    bandwidth_bytes_s: number | null;
    ceiling_tokens_per_s: number | null;
    allreduce_share: number | null;
  }[];
  speculation: {
    acceptance: number;
    drafts: number;
    draft_cost: number;
    tokens_per_verification: number;
    verify_cost: number | null;
    speedup: number | null;
    best_drafts: number | null;
    best_speedup: number | null;
    grid: { acceptance: number; drafts: number; tokens_per_verification: number; speedup: number | null }[];
    by_batch: { batch: number; speedup: number }[];
  } | null;
  replicas: {
    rate: number;
    replicas: number | null;
    devices: number | null;
    batch: number;
    capacity_per_s: number;
    utilisation: number | null;
    in_flight: number | null;
    wait_probability: number | null;
    wait_mean_s: number | null;
    wait_p95_s: number | null;
    first_token_s: number | null;
    request_s: number | null;
    sizes: { replicas: number; utilisation: number; stable: boolean; wait_p95_s: number | null }[];
  } | null;
  cost: { hour_price: number; input_per_million: number; output_per_million: number; blended_per_million: number; at_rate_per_million: number | null } | null;
  prices: {
    input_price: number;
    output_price: number;
    per_request: number;
    blended_per_million: number;
    per_hour: number | null;
    own_per_hour: number | null;
    break_even_rate: number | null;
    break_even_utilisation: number | null;
  } | null;
  profiles: {
    name: string;
    batch: number;
    first_token_s: number;
    request_tokens_per_s: number;
    tokens_per_s: number;
    requests_per_s: number;
    request_s: number;
    cost_per_million: number | null;
  }[];
  measured: {
    requests: number;
    prompt_tokens: number;
    output_tokens: number;
    rows: { name: string; label: string; unit: string; theory: number | null; measured: number | null; ratio: number | null }[];
    compute_efficiency: number | null;
    bandwidth_efficiency: number | null;
  } | null;
  notes: string[];
}

export interface Budget {
  context: number;
  parts: { name: string; tokens: number; each?: number[] }[];
  prompt_tokens: number;
  used_tokens: number;
  free_tokens: number;
  fits: boolean;
  longest_output: number;
  assembled: ContextTrace | null;
}
