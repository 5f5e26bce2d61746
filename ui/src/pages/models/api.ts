/** /admin/models. */
import { type AdminOptions, adminJson } from "../../lib/admin";

export interface Deployment {
  name: string;
  replica: number;
  state: string;
  open: number;
  open_tokens: number;
  running: number | null;
  waiting: number | null;
  kv_use: number | null;
  device: string | null;
  weights_bytes: number | null;
  kv_bytes: number | null;
  restarts: number;
  decisions: number;
  ttft_s: number | null;
  stale: string[];
  breaker: { state: "closed" | "open" | "half_open" | "held"; wait_s: number; failures: number };
}

export interface Model {
  id: string;
  owned_by: string;
  max_model_len: number | null;
  state: string;
  capabilities: string[];
  aliases: string[];
  price: { input: number; output: number; cached_input: number | null } | null;
  kind: "local" | "adapter" | "upstream" | "route";
  region: string | null;
  pinned: boolean;
  expires_s: number | null;
  fallback: { model: string; max_tokens: number | null }[];
  policy: string | null;
  models: string[];
  scaling: { replicas: number; min_replicas: number; max_replicas: number; demand: number } | null;
  deployments: Deployment[];
}

/** A LoRA adapter, from /admin/adapters. */
export interface Adapter {
  id: string;
  name: string;
  model: string;
  version: string;
  rank: number;
  modules: string[];
  bytes: number;
  price: Model["price"];
  open: number;
  residency: { replica: number; state: string; bytes: number; hits: number; loads: number; in_use: number; error: string | null }[];
}

export const listAdapters = async (signal: AbortSignal): Promise<Adapter[]> =>
  (await adminJson<{ data: Adapter[] }>("/admin/adapters", { signal })).data;

export const listModels = async (signal: AbortSignal): Promise<Model[]> =>
  (await adminJson<{ data: Model[] }>("/admin/models", { signal })).data;

const path = (route: string, model: string): string => `${route}?model=${encodeURIComponent(model)}`;

/** Each waits until it is done. */
export const ACTIONS = {
  load: { label: "Load", busy: "Loading…", path: (name: string) => path("/admin/load", name), method: "POST" },
  unload: { label: "Unload", busy: "Unloading…", path: (name: string) => path("/admin/unload", name), method: "POST" },
  sleep: { label: "Sleep", busy: "Falling asleep…", path: (name: string) => path("/sleep", name), method: "POST" },
  wake: { label: "Wake", busy: "Waking…", path: (name: string) => path("/wake_up", name), method: "POST" },
  remove: { label: "Remove", busy: "Removing…", path: (name: string) => `/admin/models/${name.split("/").map(encodeURIComponent).join("/")}`, method: "DELETE" },
} as const satisfies Record<string, { label: string; busy: string; path: (name: string) => string; method: AdminOptions["method"] }>;

export type Action = keyof typeof ACTIONS;

export async function act(action: Action, name: string): Promise<void> {
  await adminJson(ACTIONS[action].path(name), { method: ACTIONS[action].method });
}

export async function addModel(entry: Record<string, unknown>): Promise<void> {
  await adminJson("/admin/models", { method: "POST", body: entry });
}
