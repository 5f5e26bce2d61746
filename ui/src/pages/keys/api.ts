/** /admin/keys, /admin/tenants, /admin/audit and /admin/limits. Times are seconds since 1970. */
import { adminJson } from "../../lib/admin";

export interface Limits {
  requests_per_minute: number | null;
  tokens_per_minute: number | null;
  concurrent_requests: number | null;
  usd_per_day: number | null;
  usd_per_month: number | null;
}

export interface Key extends Limits {
  id: string;
  tenant: string;
  name: string;
  state: "active" | "expired" | "revoked";
  scopes: string[];
  models: string[] | null;
  tier: string;
  default_max_tokens: number | null;
  max_tokens: number | null;
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
  rotated_at: number | null;
  previous_valid_until: number | null;
  key?: string | null; // the key itself, in the answer to its creation or rotation
}

export interface Tenant extends Limits {
  name: string;
  weight: number;
  created_at: number;
}

export interface AuditEntry {
  id: number;
  time: number;
  actor: string;
  action: string;
  target: string;
  details: Record<string, unknown>;
  outcome: string;
  request_id: string | null;
}

export const SCOPES = ["inference", "observe", "admin"] as const;
export const TIERS = ["interactive", "standard", "bulk"] as const;

type List<T> = { data: T[] };
type Page<T> = List<T> & { last_id: string | null; has_more: boolean };
/** Which keys and tenants are listed: a text that they have, and from where on. */
export interface Asked {
  search: string;
  all: boolean; // with keys that are revoked or expired
  after: Key | null; // the one before the page; null: from the first one on
}

const PAGE = 100; // keys
export const MAX_PAGE = 1000; // of any list
type Values = Record<string, unknown>;

const one = (route: string, name: string): string => `${route}/${encodeURIComponent(name)}`;

/** Without what is empty. */
export function queryOf(values: Record<string, string | number | undefined>): string {
  return new URLSearchParams(Object.entries(values).flatMap(([name, value]) => (value ? [[name, String(value)]] : []))).toString();
}

export const getKey = (id: string, signal: AbortSignal): Promise<Key> => adminJson(one("/admin/keys", id), { signal });
export const getTenant = (name: string, signal: AbortSignal): Promise<Tenant> => adminJson(one("/admin/tenants", name), { signal });

export interface Listing {
  keys: Key[];
  tenants: Tenant[];
  more: boolean;
}

/** A page of keys by tenant, and the tenants between its first and its last key, those without keys included. */
export async function listPage({ search, all, after }: Asked, signal: AbortSignal): Promise<Listing> {
  const [keys, next] = await Promise.all([
    adminJson<Page<Key>>(`/admin/keys?${queryOf({ search, state: all ? "" : "active", after: after?.id, limit: PAGE })}`, { signal }),
    adminJson<Page<Tenant>>(`/admin/tenants?${queryOf({ search, after: after?.tenant, limit: MAX_PAGE })}`, { signal }),
  ]);
  const end = keys.has_more ? next.data.findIndex(({ name }) => name === keys.data.at(-1)!.tenant) + 1 : next.data.length;
  const tenants = next.data.slice(0, end);
  const missing = new Set(keys.data.map(({ tenant }) => tenant).filter((name) => !tenants.some((tenant) => tenant.name === name)));
  return { keys: keys.data, tenants: [...(await Promise.all([...missing].map((name) => getTenant(name, signal)))), ...tenants], more: keys.has_more };
}

export const createKey = (body: Values): Promise<Key> => adminJson("/admin/keys", { method: "POST", body });
export const updateKey = (id: string, body: Values): Promise<Key> => adminJson(one("/admin/keys", id), { method: "POST", body });
export const revokeKey = (id: string): Promise<Key> => adminJson(one("/admin/keys", id), { method: "DELETE" });
export const rotateKey = (id: string, grace_s: number): Promise<Key> =>
  adminJson(`${one("/admin/keys", id)}/rotate`, { method: "POST", body: { grace_s } });

export const createTenant = (body: Values): Promise<Tenant> => adminJson("/admin/tenants", { method: "POST", body });
export const updateTenant = (name: string, body: Values): Promise<Tenant> => adminJson(one("/admin/tenants", name), { method: "POST", body });

export const listAudit = (query: string, signal?: AbortSignal): Promise<List<AuditEntry> & { has_more: boolean }> =>
  adminJson(`/admin/audit${query}`, { signal });
