/** Sums of usage rows: by group, by day, and over all. */
import { type Group, type Row, dayName } from "./api";

export interface Sum {
  name: string;
  label: string; // what people call it
  requests: number;
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  drafted_tokens: number;
  cost_usd: number;
  cache_savings_usd: number;
}

const FIELDS = ["requests", "input_tokens", "cached_tokens", "output_tokens", "drafted_tokens", "cost_usd", "cache_savings_usd"] as const;

export const METRICS = {
  cost: { label: "Cost", of: (row: Omit<Sum, "name" | "label">) => row.cost_usd },
  tokens: { label: "Tokens", of: (row: Omit<Sum, "name" | "label">) => row.input_tokens + row.output_tokens },
  requests: { label: "Requests", of: (row: Omit<Sum, "name" | "label">) => row.requests },
} as const;
export type Metric = keyof typeof METRICS;

export function sum(name: string, rows: readonly Omit<Sum, "name" | "label">[], label = name): Sum {
  const total: Sum = { name, label, requests: 0, input_tokens: 0, cached_tokens: 0, output_tokens: 0, drafted_tokens: 0, cost_usd: 0, cache_savings_usd: 0 };
  for (const row of rows) for (const field of FIELDS) total[field] += row[field];
  return total;
}

/** By group, the largest first. */
export function byGroup(rows: readonly Row[], group: Group, metric: Metric): Sum[] {
  const found = new Map<string, Row[]>();
  for (const row of rows) {
    const name = row[group] ?? "";
    const own = found.get(name);
    if (own) own.push(row);
    else found.set(name, [row]);
  }
  const { of } = METRICS[metric];
  return [...found].map(([name, own]) => sum(name, own, (group === "key" && own[0]!.key_name) || name)).sort((a, b) => of(b) - of(a) || a.name.localeCompare(b.name));
}

/** One value per day; 0 where there was nothing. */
export function perDay(rows: readonly Row[], days: readonly number[], of: (row: Row) => number): number[] {
  const found = new Map<string, number>();
  for (const row of rows) found.set(row.day ?? "", (found.get(row.day ?? "") ?? 0) + of(row));
  return days.map((day) => found.get(dayName(day)) ?? 0);
}
