/** GET /usage: sums of usage records. Days are UTC's. */
import { adminRequest, unlocked } from "../../lib/admin";
import { request } from "../../lib/http";

export type Group = "tenant" | "model" | "key";

export interface Row {
  day?: string; // 2026-01-31
  tenant?: string;
  model?: string;
  key?: string; // the id
  key_name?: string; // "": it has none
  requests: number;
  input_tokens: number; // cached ones included
  cached_tokens: number;
  output_tokens: number;
  drafted_tokens: number;
  cost_usd: number;
  cache_savings_usd: number;
}

/** With the admin key, of all tenants; with the tab's API key, of its own. */
export const ask = (query: string, signal?: AbortSignal): Promise<Response> =>
  unlocked.value ? adminRequest(`/usage?${query}`, { signal }) : request(`/usage?${query}`, { signal });

const DAY_S = 86_400;

/** The last `count` UTC days up to today, as Unix seconds of their beginnings. */
export function lastDays(count: number, now = Date.now() / 1000): number[] {
  const today = Math.floor(now / DAY_S) * DAY_S;
  return Array.from({ length: count }, (_, place) => today - (count - 1 - place) * DAY_S);
}

export const dayName = (unixSeconds: number): string => new Date(unixSeconds * 1000).toISOString().slice(0, 10);

export function queryOf(group: Group, days: number[]): URLSearchParams {
  return new URLSearchParams({ group_by: `day,${group}`, from: dayName(days[0]!) });
}

export async function usage(group: Group, days: number[], signal: AbortSignal): Promise<Row[]> {
  const response = await ask(queryOf(group, days).toString(), signal);
  return ((await response.json()) as { data: Row[] }).data;
}
