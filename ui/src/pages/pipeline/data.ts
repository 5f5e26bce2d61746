/** /observe/pipeline, and rates from two answers of it. */
import { signal } from "@preact/signals";
import { fetchJson } from "../../lib/http";
import { usePolling } from "../../lib/frames";
import { connection } from "../../lib/live";

export interface StageFigures {
  name: string;
  now: number;
  count: number;
  us_mean: number | null;
  us_p50: number | null;
  us_p95: number | null;
  refused: number;
}

export interface Totals {
  requests: number;
  prompt_tokens: number;
  hit_tokens: number;
  output_tokens: number;
  steps: number;
  rows: number;
  step_s: number;
  plan_s: number;
  settle_s: number;
  prefill_tokens: number;
  decode_tokens: number;
  drafted: number;
  accepted: number;
  text_s: number;
  writes: number;
  written_bytes: number;
}

export interface PipelineAnswer {
  t: number;
  window_s: number;
  requests: number;
  open: number;
  stages: StageFigures[];
  path_us: Record<string, number>;
  totals: Totals;
  active: Record<string, boolean>;
}

/** Per second, between the last two answers. */
export type Rates = Record<keyof Totals, number>;

export const answer = signal<PipelineAnswer | null>(null);
export const rates = signal<Rates | null>(null);

const EVERY_MS = 1000;
const STALE_US = 5e6; // of answers that make no rate: the page was hidden meanwhile

export function usePipeline(): void {
  const live = connection.value === "live";
  usePolling(async (abort) => {
    if (!live) return;
    const before = answer.value;
    const now = await fetchJson<PipelineAnswer>("/observe/pipeline?seconds=60", { signal: abort });
    if (before && now.t > before.t) rates.value = now.t - before.t < STALE_US ? difference(before, now) : null;
    answer.value = now;
  }, EVERY_MS, [live]);
}

function difference(before: PipelineAnswer, now: PipelineAnswer): Rates {
  const seconds = (now.t - before.t) / 1e6;
  const names = Object.keys(now.totals) as (keyof Totals)[];
  return Object.fromEntries(names.map((name) => [name, Math.max(0, now.totals[name] - before.totals[name]) / seconds])) as Rates;
}
